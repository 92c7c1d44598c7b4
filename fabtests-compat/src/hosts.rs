//! Two hosts: network namespaces that a veth pair joins. Server and client of a case run in one
//! each, so that nothing is shared but the link.
//!
//! Made by ip(8), which needs root, and removed when the last case that names them is dropped. A
//! link may lose packets at random, by nft(8).

use std::process::Command;

/// Interface and addresses of the two ends.
const IFACE: &str = "eth0";
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// See the module text.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
}

/// Which process of a case.
#[derive(Clone, Copy)]
pub enum Side {
    Server,
    Client,
}

/// A link between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Largest packet, bytes.
    pub mtu: u16,
    /// Packets of a thousand that are lost, in each direction.
    pub loss: u16,
}

fn ip(args: &[&str]) -> Result<(), String> {
    command("ip", args)
}

fn command(program: &str, args: &[&str]) -> Result<(), String> {
    let out = Command::new(program).args(args).output();
    let out = out.map_err(|e| format!("{program}: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_string()),
    }
}

impl Hosts {
    /// Makes both. An error says why not.
    pub fn new(link: Link) -> Result<Hosts, String> {
        let Link { mtu, loss } = link;
        let id = std::process::id();
        // The two are removed even if what follows fails.
        let hosts = Hosts {
            names: ["a", "b"].map(|end| format!("fabtests-{id}-{mtu}-{loss}-{end}")),
        };
        let [a, b] = hosts.names.each_ref().map(String::as_str);
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&[
            "link", "add", IFACE, "netns", a, "type", "veth", "peer", "name", IFACE, "netns", b,
        ])?;
        for (name, address) in [a, b].into_iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            ip(&["-n", name, "addr", "add", &address, "dev", IFACE])?;
            ip(&["-n", name, "link", "set", IFACE, "mtu", &mtu.to_string()])?;
            ip(&["-n", name, "link", "set", IFACE, "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            if loss > 0 {
                lose(name, loss)?;
            }
        }
        Ok(hosts)
    }

    /// Command that runs a program on the host of this process.
    pub fn inside(&self, side: Side) -> [&str; 4] {
        let name = match side {
            Side::Server => &self.names[0],
            Side::Client => &self.names[1],
        };
        ["ip", "netns", "exec", name]
    }

    /// Where the client finds the server.
    pub fn server(&self) -> &'static str {
        ADDRESSES[0]
    }

    /// Variables that name the interface to the providers.
    pub fn env() -> [(&'static str, &'static str); 2] {
        [("FI_EFA_SOFT_IFACE", IFACE), ("FI_TCP_IFACE", IFACE)]
    }
}

/// Drops that many of a thousand packets that come to a host.
fn lose(name: &str, loss: u16) -> Result<(), String> {
    // Runs of packets that are one to the kernel would be lost together.
    ip(&["-n", name, "link", "set", IFACE, "gso_max_segs", "1"])?;
    let nft = |rule: &str| command("ip", &["netns", "exec", name, "nft", rule]);
    nft("add table netdev loss")?;
    nft(&format!(
        "add chain netdev loss c {{ type filter hook ingress device {IFACE} priority 0; }}"
    ))?;
    nft(&format!(
        "add rule netdev loss c numgen random mod 1000 < {loss} drop"
    ))
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}
