//! The part of sysfs that rdma-core and libfabric read, as a tree of real files (`SYSFS_PATH`).

use crate::config::Config;
use crate::door::{MAJOR, MINOR};
use std::fs::{create_dir_all, write};
use std::io::Result;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes the tree.
pub fn create(root: &Path, cfg: &Config) -> Result<()> {
    let class = root.join("class");
    create_dir_all(class.join("infiniband"))?;
    create_dir_all(class.join("infiniband_verbs"))?;
    create_dir_all(root.join("bus/pci/drivers/efa"))?;
    write(class.join("infiniband_verbs/abi_version"), "6\n")?;
    for n in 0..cfg.adapters {
        let (pci, name, uverbs) = (cfg.pci_of(n), cfg.name_of(n), format!("uverbs{n}"));
        let bus = pci.get(..7).unwrap_or("0000:00");
        let place = format!("devices/pci{bus}/{pci}");
        let dev = root.join(&place);
        let (ib, uv) = (
            dev.join("infiniband").join(&name),
            dev.join("infiniband_verbs").join(&uverbs),
        );
        create_dir_all(ib.join("ports/1/gids"))?;
        create_dir_all(ib.join("ports/1/pkeys"))?;
        create_dir_all(&uv)?;
        let id = cfg.device_id;
        let alias = format!("pci:v00001D0Fd{id:08X}sv00001D0Fsd{id:08X}bc02sc00i00\n");
        write(dev.join("modalias"), alias)?;
        write(dev.join("vendor"), "0x1d0f\n")?;
        write(dev.join("device"), format!("{id:#06x}\n"))?;
        write(dev.join("class"), "0x020000\n")?;
        write(dev.join("numa_node"), "-1\n")?;
        symlink("../../../bus/pci/drivers/efa", dev.join("driver"))?;
        let gid = words(&cfg.gid_of(n));
        write(ib.join("node_type"), "7: unspecified\n")?;
        let guid = gid.get(20..).unwrap_or_default();
        write(ib.join("node_guid"), format!("{guid}\n"))?;
        write(ib.join("fw_ver"), "0.0.0.0\n")?;
        write(ib.join("ports/1/gids/0"), format!("{gid}\n"))?;
        write(ib.join("ports/1/pkeys/0"), "0xffff\n")?;
        symlink(format!("../../../{pci}"), ib.join("device"))?;
        write(uv.join("ibdev"), format!("{name}\n"))?;
        write(uv.join("dev"), format!("{MAJOR}:{}\n", MINOR + n))?;
        write(uv.join("abi_version"), "1\n")?;
        symlink(format!("../../../{pci}"), uv.join("device"))?;
        let up = format!("../../{place}");
        symlink(
            format!("{up}/infiniband/{name}"),
            class.join("infiniband").join(&name),
        )?;
        symlink(
            format!("{up}/infiniband_verbs/{uverbs}"),
            class.join("infiniband_verbs").join(&uverbs),
        )?;
    }
    Ok(())
}

/// A GID as sysfs writes it.
fn words(gid: &[u8; 16]) -> String {
    let pairs = gid.chunks(2).map(|p| format!("{:02x}{:02x}", p[0], p[1]));
    pairs.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        cfg: crate::config::Config,
    }

    #[test]
    fn links_lead_to_what_they_name() {
        let cfg = Options::parse_from(["efa-sim", "--adapters", "2"]).cfg;
        let root = std::env::temp_dir().join(format!("efa-sim-sysfs-{}", std::process::id()));
        super::create(&root, &cfg).unwrap();
        let ib = root.join("class/infiniband/rdmap1s6");
        let dev = ib.join("device").canonicalize().unwrap();
        assert!(dev.ends_with("0000:01:06.0"), "{dev:?}");
        let driver = ib.join("device/driver").canonicalize().unwrap();
        assert!(driver.ends_with("drivers/efa"), "{driver:?}");
        let gid = std::fs::read_to_string(ib.join("ports/1/gids/0")).unwrap();
        assert_eq!(gid, "fe80:0000:0000:0000:02ef:a5ff:fe00:0002\n");
        let uv = root.join("class/infiniband_verbs/uverbs1/dev");
        assert_eq!(std::fs::read_to_string(uv).unwrap(), "231:193\n");
        std::fs::remove_dir_all(root).unwrap();
    }
}
