//! Two hosts: network namespaces that a veth pair joins. Server and client of a case run in one
//! each, so that nothing is shared but the link.
//!
//! Made by ip(8), which needs root, and removed when the last case that names them is dropped. A
//! link may lose packets at random, or drop what the software adapter has not sealed, by nft(8).

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Interface and addresses of the two ends.
const IFACE: &str = "eth0";
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// See the module text.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
    /// Keys of the software adapter.
    keys: Option<PathBuf>,
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
    /// The software adapter has keys (FI_EFA_SOFT_KEY_FILE), and datagrams in clear are dropped.
    pub sealed: bool,
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
    /// Makes both. An error is the reason why not.
    pub fn new(link: Link) -> Result<Hosts, String> {
        let Link { mtu, loss, sealed } = link;
        let id = std::process::id();
        let kind = if sealed { "sealed" } else { "clear" };
        let names = ["a", "b"].map(|end| format!("fabtests-{id}-{mtu}-{loss}-{kind}-{end}"));
        let keys = if sealed { Some(key_file()?) } else { None };
        // What there is of this is removed even if what follows fails.
        let hosts = Hosts { names, keys };
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
                let dropped = format!("numgen random mod 1000 < {loss}");
                drop_packets(name, &dropped)?;
            }
            if sealed {
                drop_packets(name, CLEAR)?;
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

    /// Variables that name the interface to the providers, and the keys to the software adapter.
    pub fn env(&self) -> Vec<(String, String)> {
        let named =
            ["FI_EFA_SOFT_IFACE", "FI_TCP_IFACE"].map(|v| (v.to_string(), IFACE.to_string()));
        let keys = self.keys.iter().map(|path| {
            let path = path.display().to_string();
            ("FI_EFA_SOFT_KEY_FILE".to_string(), path)
        });
        named.into_iter().chain(keys).collect()
    }
}

/// UDP datagrams that do not begin with the two bytes of a sealed one (device/soft/seal.rs).
const CLEAR: &str = "ip protocol udp @th,64,16 != 0xfb5e";

/// Drops packets that come to a host and match this.
fn drop_packets(name: &str, which: &str) -> Result<(), String> {
    // Runs of packets that are one to the kernel would be lost together.
    ip(&["-n", name, "link", "set", IFACE, "gso_max_segs", "1"])?;
    let nft = |rule: &str| command("ip", &["netns", "exec", name, "nft", rule]);
    nft("add table netdev dropped")?;
    nft(&format!(
        "add chain netdev dropped c {{ type filter hook ingress device {IFACE} priority 0; }}"
    ))?;
    nft(&format!("add rule netdev dropped c {which} drop"))
}

/// A new key file that only its owner can read.
fn key_file() -> Result<PathBuf, String> {
    let path = std::env::temp_dir().join(format!("fabtests-{}-keys", std::process::id()));
    let mut how = std::fs::OpenOptions::new();
    how.write(true).create(true).truncate(true).mode(0o600);
    let made = how.open(&path).and_then(|mut file| {
        use std::io::Write;
        writeln!(file, "{}", "5a".repeat(32))
    });
    made.map(|()| path).map_err(|e| e.to_string())
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
        if let Some(path) = &self.keys {
            let _ = std::fs::remove_file(path);
        }
    }
}
