//! Two hosts: network namespaces that a veth pair joins. Server and client of a case run in one
//! each, so that nothing is shared but the link.
//!
//! Made by ip(8), which needs root, and removed when the last case that names them is dropped.

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

fn ip(args: &[&str]) -> Result<(), String> {
    let out = Command::new("ip").args(args).output();
    let out = out.map_err(|e| format!("ip: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_string()),
    }
}

impl Hosts {
    /// Makes both, with this largest packet of the link, bytes. An error says why not.
    pub fn new(mtu: u16) -> Result<Hosts, String> {
        let id = std::process::id();
        // The two are removed even if what follows fails.
        let hosts = Hosts {
            names: ["a", "b"].map(|end| format!("fabtests-{id}-{mtu}-{end}")),
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

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}
