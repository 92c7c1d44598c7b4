use super::*;
use crate::hmem::UserMem;
use std::net::Ipv4Addr;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn open() -> Sock {
    Sock::bind(LOCAL, 0, 1 << 20).unwrap()
}

/// Sends a datagram of one byte.
fn say(from: &Sock, to: &Sock, byte: u8) {
    let mut batch = Batch::default();
    let d = batch.add(SocketAddr::new(LOCAL, to.port()));
    d.head[0] = byte;
    d.head_len = 1;
    d.body = UserMem::EMPTY;
    from.send(batch.take());
}

/// One receive: the bytes of its datagrams.
fn hear(by: &mut Sock, arena: &mut [u8]) -> Vec<u8> {
    let mut got = Vec::new();
    by.recv(arena, &mut got, 0);
    if let Some(g) = got.first() {
        by.heard(g.from);
    }
    got.iter().map(|g| arena[g.at]).collect()
}

/// Two sockets, the second connected to the first.
fn connected(arena: &mut [u8]) -> (Sock, Sock) {
    let (a, mut b) = (open(), open());
    let mut receives = 0;
    while b.peer().is_none() {
        say(&a, &b, 1);
        assert_eq!(hear(&mut b, arena), [1]);
        b.connect_to_frequent();
        receives += 1;
        assert!(receives < 300, "not connected");
    }
    assert_eq!(b.peer().map(SocketAddr::port), Some(a.port()));
    (a, b)
}

#[test]
fn a_frequent_peer_gets_a_socket_and_others_are_heard() {
    let mut arena = vec![0; SLOTS * SLOT];
    let (a, mut b) = connected(&mut arena);
    let other = open();
    for i in 0..100 {
        say(&a, &b, 2);
        say(&other, &b, 3);
        let mut heard = Vec::new();
        // As many receives again while the second socket is left.
        for _ in 0..2 * OTHERS_EVERY {
            heard.extend(hear(&mut b, &mut arena));
        }
        heard.sort_unstable();
        assert_eq!(heard, [2, 3], "round {i}");
        say(&b, &other, 4);
    }
    // A half is not four fifths.
    assert!(b.peer().is_none());
}

#[test]
fn the_port_of_a_connected_endpoint_cannot_be_bound_again() {
    let mut arena = vec![0; SLOTS * SLOT];
    let (_a, b) = connected(&mut arena);
    let sharing = Socket::open(&SocketAddr::new(LOCAL, 0), 0).unwrap();
    sharing.share_port(true);
    assert_eq!(
        sharing.bind(&SocketAddr::new(LOCAL, b.port())),
        Err(FI_EADDRINUSE)
    );
    let port = b.port();
    assert_eq!(Sock::bind(LOCAL, port, 0).err(), Some(FI_EADDRINUSE));
    drop(b);
    assert!(Sock::bind(LOCAL, port, 0).is_ok());
}

#[test]
fn what_the_connected_socket_holds_is_read_before_it_is_closed() {
    let mut arena = vec![0; SLOTS * SLOT];
    let (a, mut b) = connected(&mut arena);
    for i in 0..40 {
        say(&a, &b, i);
    }
    b.leave_peer();
    let mut heard = Vec::new();
    while b.peer().is_some() {
        heard.extend(hear(&mut b, &mut arena));
    }
    assert_eq!(heard, (0..40).collect::<Vec<_>>());
    // The first socket takes in everything again.
    say(&a, &b, 7);
    assert_eq!(hear(&mut b, &mut arena), [7]);
}

#[test]
fn datagrams_behind_an_icmp_error_are_received() {
    let mut arena = vec![0; SLOTS * SLOT];
    let (mut a, mut b) = connected(&mut arena);
    for i in 0..40 {
        say(&a, &b, i);
    }
    // The kernel answers what goes to a closed port, and reports that first.
    a.close();
    say(&b, &a, 1);
    b.leave_peer();
    let mut heard = Vec::new();
    while b.peer().is_some() {
        heard.extend(hear(&mut b, &mut arena));
    }
    assert_eq!(heard, (0..40).collect::<Vec<_>>());
}

#[test]
fn datagrams_of_other_peers_are_received_by_a_seldom_poller() {
    let mut arena = vec![0; SLOTS * SLOT];
    let (_a, mut b) = connected(&mut arena);
    let other = open();
    let mut got = Vec::new();
    say(&other, &b, 3);
    b.recv(&mut arena, &mut got, OTHERS_WAIT);
    assert_eq!(got.len(), 1);
}

#[test]
fn a_socket_that_cannot_be_had_is_not_asked_for_again_at_once() {
    let own = SocketAddr::new(LOCAL, 1);
    let peer = SocketAddr::new(LOCAL, 2);
    let mut f = FrequentPeer::new(own);
    let mut settles = |times: usize| {
        let heard = |_: usize| {
            f.heard(peer, 1);
            f.settled()
        };
        let found = (0..times).filter_map(heard).count();
        f.pass_over();
        found
    };
    assert!(settles(1000) > 0);
    assert_eq!(settles(10_000), 0);
}
