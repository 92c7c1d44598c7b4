//! The table of cases.

use crate::hosts::{Hosts, Link};
use std::path::Path;
use std::sync::Arc;

/// One case: a program, run alone or as server and client.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Command that runs the program: a profiler.
    pub under: Vec<String>,
    /// Two processes; else one.
    pub pair: bool,
    /// The ports are named by `-B` and `-P`, as fi_pingpong(1) requires; else by `-E`.
    pub pingpong_ports: bool,
    /// Seconds that it may take, instead of the command line's.
    pub limit: Option<u64>,
    /// A provider other than the one that the command line names.
    pub provider: Option<&'static str>,
    /// Each process on a host of its own.
    pub hosts: Option<Arc<Hosts>>,
}

/// Bad networks, by seed: percentages of lost, doubled and reordered datagrams, delay in us.
const FAULTS: [&str; 3] = [
    "loss=5,dup=5,reorder=60,delay=500,seed=1",
    "loss=5,dup=5,reorder=60,delay=500,seed=2",
    "reorder=95,delay=2000,seed=3",
];

/// Programs and options that are measured.
pub const BENCH: &[(&str, &str)] = &[
    ("fi_rdm_pingpong", ""),
    ("fi_rdm_tagged_pingpong", ""),
    ("fi_rdm_bw", ""),
    ("fi_rdm_tagged_bw", ""),
    ("fi_rma_bw", "-o write"),
    ("fi_rma_bw", "-o writedata"),
    ("fi_rma_bw", "-o read"),
];

/// Sizes at which they are measured, bytes.
pub const BENCH_SIZES: &[&str] = &["8", "64", "1024", "4096", "65536", "1048576", "8388608"];

fn words(s: &str) -> Vec<String> {
    s.split_whitespace().map(str::to_string).collect()
}

impl Case {
    /// A server and a client of this program.
    pub fn pair(program: &str, args: &str) -> Case {
        Case {
            name: format!("{program} {args}").trim().to_string(),
            program: program.into(),
            args: words(args),
            env: Vec::new(),
            under: Vec::new(),
            pair: true,
            pingpong_ports: false,
            provider: None,
            hosts: None,
            limit: None,
        }
    }

    /// With the processes on these two hosts.
    pub fn between(mut self, hosts: &Arc<Hosts>) -> Case {
        self.env.extend(hosts.env());
        self.hosts = Some(hosts.clone());
        self
    }

    /// With provider tcp.
    fn tcp(mut self) -> Case {
        self.name.push_str(" (tcp)");
        self.provider = Some("tcp");
        self
    }

    /// One process, by its command line.
    fn single(line: &str) -> Case {
        let (program, args) = line.split_once(' ').unwrap_or((line, ""));
        Case {
            pair: false,
            // Takes 90 s on two busy processors.
            limit: (program == "shortage").then_some(600),
            ..Case::pair(program, args)
        }
    }

    fn with_env(mut self, name: &str, value: &str) -> Case {
        self.name = format!("{} {name}={value}", self.name);
        self.env.push((name.into(), value.into()));
        self
    }

    /// With peers on the same host reached through the adapter, as on other hosts.
    pub fn far(self) -> Case {
        self.with_env("FI_EFA_ENABLE_SHM_TRANSFER", "0")
    }

    /// With an emulated GPU.
    fn with_gpu(self) -> Case {
        self.with_device("cuda")
    }

    /// With an emulated device of this kind.
    fn with_device(mut self, kind: &str) -> Case {
        let own = std::env::current_exe().unwrap_or_default();
        let sim = own.with_file_name("gpu-sim").display().to_string();
        self.name.push_str(" (gpu-sim)");
        self.under = [&sim, "run", "--device", kind, "--"]
            .map(str::to_string)
            .to_vec();
        self
    }

    /// With each process in a container of its own: other user and process ids.
    fn contained(mut self) -> Case {
        self.name.push_str(" (containers)");
        self.under = CONTAINER.map(str::to_string).to_vec();
        self
    }

    /// The case of `make demo`.
    pub fn demo() -> Case {
        Case::pair("fi_rma_bw", "-o write -S all -I 200 -w 20")
    }

    /// As [`Case::demo`], with memory of a GPU: an emulated one where there is no other.
    pub fn cuda_demo() -> Case {
        let c = Case::pair(
            "fi_rma_bw",
            "-p efa -o write -E -D cuda -S all -I 200 -w 20",
        );
        match Path::new("/dev/nvidiactl").exists() {
            true => c,
            false => c.with_gpu(),
        }
    }
}

/// Command that runs a process in a container.
const CONTAINER: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Cases of two hosts, by the software adapter and by tcp, where ip(8) can make them. One link
/// loses one packet of a hundred, and one lets only what is sealed pass, where nft(8) can have them
/// do so.
fn two_hosts() -> Vec<Case> {
    let mut v = Vec::new();
    for (mtu, loss, sealed, times) in [
        (1500, 0, false, 50),
        (9000, 0, false, 50),
        (1500, 10, false, 10),
        (1500, 0, true, 10),
    ] {
        let how = match sealed {
            true => "sealed".to_string(),
            false => format!("loss {loss}"),
        };
        let hosts = match Hosts::new(Link { mtu, loss, sealed }) {
            Ok(h) => Arc::new(h),
            Err(why) => {
                eprintln!("no two hosts here with MTU {mtu}, {how} ({why}): left out");
                continue;
            }
        };
        for (program, args) in BENCH {
            let args = format!("{args} -v -S 8,4096,65536,1048576 -I {times} -W 8");
            let mut efa = Case::pair(program, &args).between(&hosts);
            efa.name
                .push_str(&format!(" (two hosts, MTU {mtu}, {how})"));
            if sealed {
                v.push(efa);
                continue;
            }
            let mut tcp = efa.clone();
            tcp.name.push_str(" (tcp)");
            tcp.provider = Some("tcp");
            v.extend([efa, tcp]);
        }
    }
    v
}

/// Cases of two containers that share a network, where unshare(1) is permitted.
fn containers() -> Vec<Case> {
    let mut probe = std::process::Command::new(CONTAINER[0]);
    let made = probe.args(&CONTAINER[1..]).arg("true").output();
    if !made.is_ok_and(|o| o.status.success()) {
        eprintln!("unshare(1) cannot make containers here: left out");
        return Vec::new();
    }
    [
        ("fi_rdm_tagged_pingpong", ""),
        ("fi_rdm_bw", "-c fd"),
        ("fi_rma_bw", "-o write"),
        ("fi_rma_bw", "-o read"),
    ]
    .map(|(program, args)| {
        let args = format!("{args} -v -S 8,4096,100000,1048576 -I 20 -W 8");
        Case::pair(program, &args).contained()
    })
    .to_vec()
}

/// Cases of provider tcp.
fn tcp() -> Vec<Case> {
    let mut v = Vec::new();
    for (program, args) in [
        ("fi_rdm_pingpong", ""),
        ("fi_rdm_tagged_pingpong", ""),
        ("fi_rdm_bw", ""),
        ("fi_rdm_tagged_bw", ""),
        ("fi_rma_bw", "-o write"),
        ("fi_rma_bw", "-o writedata"),
        ("fi_rma_bw", "-o read"),
        ("fi_rma_pingpong", "-o writedata"),
    ] {
        let args = format!("{args} -v -S all -I 20 -W 8");
        v.push(Case::pair(program, &args).tcp());
    }
    for wait in ["sread", "fd"] {
        for (program, args) in [
            ("fi_rdm_tagged_pingpong", "-S 8,100000"),
            ("fi_rdm_bw", "-W 8 -S 60000,1048576"),
            ("fi_rma_bw", "-o write -W 8 -S 8,100000"),
        ] {
            v.push(Case::pair(program, &format!("{args} -c {wait} -v -I 50")).tcp());
        }
    }
    v
}

/// Endpoints without the wire protocol.
fn direct() -> Vec<Case> {
    ["fi_rdm_pingpong", "fi_rdm_bw"]
        .map(|p| Case::pair(p, "-S 1,64,4096 -v -I 20 -W 8 -f efa-direct"))
        .to_vec()
}

/// Cases that reach their peers through an EFA adapter, real or emulated: for `efa-sim run`.
pub fn adapter(bin: &Path) -> Vec<Case> {
    let mut v = Vec::new();
    for p in [
        "fi_rdm_pingpong -S 1,4096,100000",
        "fi_rdm_tagged_bw -S 1,65536,1048576",
        "fi_rma_bw -o write -S 1,4096,1048576",
        "fi_rma_bw -o writedata -S 64,100000",
        "fi_rma_bw -o read -S 1,4096,1048576",
        "fi_rdm_tagged_pingpong -c fd -S 8,100000",
    ] {
        let (program, args) = p.split_once(' ').unwrap_or((p, ""));
        v.push(Case::pair(program, &format!("{args} -v -I 10 -W 8 -f efa")).far());
    }
    v.extend(direct());
    v.extend(["counters", "peer_death", "collectives", "efa_ops"].map(|p| Case::single(p).far()));
    v.retain(|c| bin.join(&c.program).exists());
    v
}

/// Every case for a folder of binaries.
pub fn all(bin: &Path) -> Vec<Case> {
    let mut v = Vec::new();
    for p in [
        "fi_rdm_pingpong",
        "fi_rdm_tagged_pingpong",
        "fi_rdm_bw",
        "fi_rdm_tagged_bw",
        "fi_rma_bw -o write",
        "fi_rma_bw -o writedata",
        "fi_rma_bw -o read",
        "fi_rma_pingpong -o writedata",
    ] {
        let (program, args) = p.split_once(' ').unwrap_or((p, ""));
        let every = Case::pair(program, &format!("{args} -v -S all -I 20 -W 8"));
        v.push(every.clone().far());
        v.push(every);
        for f in FAULTS {
            let c = Case::pair(
                program,
                &format!("{args} -v -S 1,64,4096,100000,1048576 -I 20 -W 8"),
            );
            v.push(c.far().with_env("FI_EFA_SOFT_FAULT", f));
        }
    }
    // Messages through shared memory, writes through a bad network: both ways at once.
    let mixed = Case::pair("fi_rma_bw", "-o writedata -v -S 1,4096,1048576 -I 20 -W 8");
    v.push(mixed.with_env("FI_EFA_SOFT_FAULT", FAULTS[0]));
    // Shared memory without cross-memory attach, as on systems that forbid it.
    for p in [
        "fi_rdm_tagged_pingpong",
        "fi_rdm_bw",
        "fi_rma_bw -o writedata",
    ] {
        let (program, args) = p.split_once(' ').unwrap_or((p, ""));
        let c = Case::pair(program, &format!("{args} -v -S all -I 20 -W 8"));
        v.push(c.with_env("FI_EFA_SHM_ATTACH", "0"));
    }
    for wait in ["sread", "fd"] {
        // The second case fills rings: senders block until there is room.
        for (program, args) in [
            ("fi_rdm_tagged_pingpong", "-S 8,100000"),
            ("fi_rdm_bw", "-W 8 -S 60000,1048576"),
            ("fi_rma_bw", "-o write -W 8 -S 8,100000"),
        ] {
            let args = format!("{args} -c {wait} -v -I 50");
            v.push(Case::pair(program, &args));
            v.push(Case::pair(program, &args).far());
        }
    }
    v.extend(containers());
    v.extend(two_hosts());
    v.extend(tcp());
    v.extend(direct());
    for o in ["write", "writedata", "read"] {
        let args = format!("-o {o} -S 1,64,4096,100000 -v -I 50 -W 8 -f efa-direct");
        v.push(Case::pair("fi_rma_bw", &args));
        v.push(Case::pair("fi_rma_bw", &args).far());
    }
    // Default options: not verified, and with injection.
    v.push(Case::pair(
        "fi_rma_pingpong",
        "-o write -S 8,4096,65536 -I 100",
    ));
    v.push(Case::pair("fi_rdm_bw", "-S 8,4096,65536 -I 2000"));
    // Every subprotocol that the sizes above do not take by themselves, on a good and a bad
    // network.
    let emulated = [("FI_EFA_USE_DEVICE_RDMA", "0")];
    let runting = [
        ("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "70000"),
        ("FI_EFA_RUNT_SIZE", "65536"),
    ];
    let reading = [("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "70000")];
    let cleared = [("FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE", "0")];
    let ways: [(&str, &[(&str, &str)]); 7] = [
        ("fi_rma_bw -o write", &emulated),
        ("fi_rma_bw -o writedata", &emulated),
        ("fi_rma_bw -o read", &emulated),
        ("fi_rdm_tagged_pingpong", &runting),
        ("fi_rdm_pingpong", &reading),
        ("fi_rdm_tagged_bw", &reading),
        ("fi_rdm_bw", &cleared),
    ];
    for (p, env) in ways {
        let (program, args) = p.split_once(' ').unwrap_or((p, ""));
        for fault in [None, Some(FAULTS[0])] {
            let sizes = "-v -S 1,4096,65536,100000,1048576 -I 20 -W 8";
            // Most of these subprotocols are not used over shared memory.
            let mut c = Case::pair(program, &format!("{args} {sizes}")).far();
            for (name, value) in env {
                c = c.with_env(name, value);
            }
            if let Some(f) = fault {
                c = c.with_env("FI_EFA_SOFT_FAULT", f);
            }
            v.push(c);
        }
    }
    for p in [
        "old_nodes",
        "imports",
        "write_receives",
        "tcp_regions",
        "provider_file",
        "counters",
        "polled_counters efa",
        "polled_counters efa-direct",
        "operations",
        "deferred_work",
        "bad_input",
        "peer_death",
        "peer_death forked",
        "peer_death closed",
        "peer_death atomics",
        "long_messages",
        "long_messages reluctantly",
        "many_accesses",
        "many_accesses reluctantly",
        "sleepers",
        "connections",
        "absent_target",
        "last_messages efa",
        "last_messages tcp",
        "collectives",
        "collectives leave",
        "dmabuf efa",
        "dmabuf efa-direct",
        "forks efa",
        "broken_send",
        "announced tcp",
        "announced efa",
        "callers passive",
        "callers backlog",
        "callers exhausted",
        "callers leaving",
        "first_contact",
        "first_contact killed",
        "first_contact writes",
        "shared_close tcp",
        "shared_close efa",
        "shared_close efa tagged",
        "shared_close efa multi",
        "restart tcp",
        "restart efa 127.0.0.1 renew",
        "restart efa 127.0.0.1 resolve",
        "opsflags tcp",
        "opsflags efa",
        "opsflags efa efa-direct",
        "incast tcp",
        "incast efa",
        "flooded tcp",
        "flooded efa",
        "starved tcp long",
        "starved tcp behind",
        "starved efa long",
        "starved efa behind",
        "two_providers efa",
        "trust forked",
        "trust killed",
        "trust stopped",
        "trust full",
        "trust refused",
        "trust again",
        "shortage fds",
        "shortage space",
        "shortage memory",
        "shortage crowded",
        "shortage files",
        "shortage standard",
        "kills 20",
        "intruder 5",
        "asan/bad_input",
        "asan/operations",
        "asan/deferred_work",
        "asan/peer_death",
        "asan/collectives",
        "asan/random_calls 60",
    ] {
        v.push(Case::single(p));
    }
    for p in [
        "operations",
        "deferred_work",
        "sleepers",
        "peer_death",
        "peer_death atomics",
        "absent_target",
        "last_messages efa",
        "collectives",
        "dmabuf efa-direct",
        "forks efa",
        "two_providers efa",
        "forks efa-direct",
        "incast efa",
        "flooded efa",
        "starved efa behind",
        "shared_close efa",
        "restart efa 127.0.0.1 renew-other",
        "restart efa 127.0.0.1 resolve",
        "trust forked",
        "trust full",
        "shortage fds",
        "shortage space",
        "shortage memory",
        "kills 20",
        "intruder 5",
        "asan/random_calls 60 1000",
    ] {
        v.push(Case::single(p).far());
    }
    for fabric in ["efa", "efa-direct"] {
        let near = Case::single(&format!("device_memory {fabric}")).with_gpu();
        v.extend([near.clone().far(), near]);
        v.push(Case::single(&format!("device_memory {fabric} plain")).with_gpu());
        let broken = Case::single(&format!("device_memory {fabric} broken"));
        let broken = broken
            .with_gpu()
            .with_env("GPU_SIM_FAIL", "cuMemcpyAsync=700,gdr_open");
        v.extend([broken.clone().far(), broken]);
        if !Path::new("/dev/nvidiactl").exists() {
            v.push(Case::single(&format!("device_memory {fabric} none")));
        }
    }
    let mapped = Case::single("device_memory efa mapped").with_gpu();
    let unmapped = Case::single("device_memory efa unmapped").with_gpu();
    let unmapped = unmapped.with_env("GPU_SIM_FAIL", "gdr_open");
    v.extend([mapped.clone().far(), mapped, unmapped]);
    v.push(Case::single("device_peers efa").with_gpu());
    if !Path::new("/dev/nvidiactl").exists() {
        for (kind, how) in [
            ("rocr", "moved"),
            ("neuron", "refused"),
            ("synapse", "refused"),
        ] {
            for fabric in ["efa", "efa-direct"] {
                let c = Case::single(&format!("other_devices {kind} {fabric} {how}"));
                v.push(c.with_device(kind));
            }
        }
        let peers = Case::single("other_devices rocr efa peers").with_device("rocr");
        v.extend([peers.clone().far(), peers]);
    }
    for (program, args) in [
        ("fi_rma_bw", "-o write -S all"),
        ("fi_rma_bw", "-o read -S all"),
        ("fi_rma_bw", "-o writedata -S 8,4096,100000,1048576"),
        ("fi_rdm_tagged_pingpong", "-S all"),
        ("fi_rdm_bw", "-S all"),
    ] {
        let c = Case::pair(program, &format!("-D cuda {args} -v -I 10 -w 2 -W 4")).with_gpu();
        v.extend([c.clone().far(), c]);
    }
    let direct = "-f efa-direct -D cuda -o write -S 8,4096,100000,1048576 -v -I 10 -w 2 -W 4";
    v.push(Case::pair("fi_rma_bw", direct).with_gpu());
    // An external provider is found, and nothing else answers to its name.
    let outside = Case::single("fi_info -p outside");
    let ext = bin.join("../ext");
    if ext.exists() {
        v.push(outside.with_env("FI_PROVIDER_PATH", &ext.display().to_string()));
    }
    let layers = bin.join("../layers");
    if layers.exists() {
        v.push(Case::single(&format!("layers {}", layers.display())));
    }
    // Debian's own binaries, linked to libfabric 1.17 (package libfabric-bin).
    let mut debian = Case::pair("/usr/bin/fi_pingpong", "-e rdm -c");
    debian.pingpong_ports = true;
    let mut ours = debian.clone();
    ours.program = "fi_pingpong".into();
    ours.name = "fi_pingpong -e rdm -c".into();
    v.extend([ours, Case::single("fi_strerror 61")]);
    let info = Case::single("/usr/bin/fi_info");
    v.extend([debian.clone(), info]);
    // The same with Debian's library, which has no efa, and ours as a provider file.
    let files = bin.join("../provider");
    if let Ok(files) = files.canonicalize() {
        let info = Case::single("/usr/bin/fi_info -p efa");
        let hosted = |c: Case| {
            c.with_env("LD_LIBRARY_PATH", "")
                .with_env("FI_PROVIDER_PATH", &files.display().to_string())
        };
        v.extend([debian, info].map(hosted));
    }
    // A folder of another fabtests lacks most of them; ours has to have all.
    let ours = bin.join("operations").exists();
    v.retain(|c| {
        let wanted = ours && !Path::new(&c.program).is_absolute();
        wanted || bin.join(&c.program).exists()
    });
    v
}
