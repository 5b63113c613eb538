use super::*;
use crate::cli::request::DiskName;
use crate::service::config::{CodecConfig, DoorChoice, ServeConfig};
use crate::service::disk::Medium;
use pagefold_backing::MemoryBacking;
use pagefold_store::parking::LayoutKind;
use std::sync::Arc;

/// A server without a door.
struct Bare {
    disk: Disk,
    users: Vec<String>,
    parked: Vec<Selection>,
}

impl Host for Bare {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn users(&self) -> Vec<String> {
        self.users.clone()
    }

    fn park(&mut self, selection: &Selection) -> Outcome<()> {
        self.parked.push(selection.clone());
        Ok(())
    }
}

fn host(medium: Option<Medium>) -> Bare {
    let config = ServeConfig {
        size_bytes: 1 << 20,
        codec: CodecConfig { name: "lz4".into(), level: None, dictionary: None },
        mem_limit_bytes: Some(1 << 20),
        door: DoorChoice::Nbd,
        uncompressed: false,
        listen: None,
        backing: None,
    };
    let disk = Disk::new(DiskName::numbered(0), &config, medium).unwrap();
    Bare { disk, users: Vec::new(), parked: Vec::new() }
}

fn without_backing() -> Bare {
    host(None)
}

fn with_backing(layout: LayoutKind) -> Bare {
    let backing = Arc::new(MemoryBacking::new(32 << 20));
    host(Some(Medium {
        backing,
        path: "/var/park".into(),
        created: false,
        layout,
        rate_bytes_per_s: 5,
        daily_bytes: 7,
    }))
}

fn set(host: &mut Bare, changes: &[&str]) -> Outcome<()> {
    let understood = changes.iter().map(|c| parse_change(c)).collect::<Outcome<_>>()?;
    apply(host, understood)
}

fn shown(host: &Bare, name: &str) -> String {
    find(name).unwrap().show(&host.disk).unwrap()
}

#[test]
fn names_are_unique_and_every_attribute_does_something() {
    let table: Vec<_> = all().collect();
    for (i, a) in table.iter().enumerate() {
        assert!(a.show.is_some() || a.change.is_some(), "{}", a.name);
        assert!(table[..i].iter().all(|b| b.name != a.name), "{}", a.name);
    }
}

#[test]
fn what_is_set_is_shown() {
    let mut host = without_backing();
    assert_eq!(shown(&host, "size"), "1048576");
    assert_eq!(shown(&host, "mem_limit"), "1048576");
    set(&mut host, &["mem_limit=2G"]).unwrap();
    assert_eq!(shown(&host, "mem_limit"), "2147483648");
    set(&mut host, &["mem_limit=0"]).unwrap();
    assert_eq!(shown(&host, "mem_limit"), "0");
    set(&mut host, &["same_filled_pages_enabled=off"]).unwrap();
    assert_eq!(shown(&host, "same_filled_pages_enabled"), "0");
    set(&mut host, &["compact=1", "mem_used_max=0", "latency=0"]).unwrap();
}

#[test]
fn what_is_set_of_parking_is_shown() {
    let mut host = with_backing(LayoutKind::Log);
    for (name, text) in [
        ("backing_dev", "/var/park"),
        ("compressed_writeback", "1"),
        ("bd_stat", "       0        0        0"),
        ("park_rate", "5"),
        ("park_daily", "7"),
    ] {
        assert_eq!(shown(&host, name), text, "{name}");
    }
    for (change, text) in [
        ("writeback_limit=12", "12"),
        ("writeback_limit_enable=1", "1"),
        ("writeback_batch_size=1", "1"),
        ("writeback_batch_size=1024", "1024"),
        ("promote=off", "0"),
        ("promote_window=5m", "300"),
        ("park_high=95", "95"),
        ("park_low=30%", "30"),
        ("park_age=1h", "3600"),
        ("park_rate=50M/s", "52428800"),
        ("park_daily=20G", "21474836480"),
        ("park_busy=0", "0"),
    ] {
        set(&mut host, &[change]).unwrap();
        assert_eq!(shown(&host, change.split('=').next().unwrap()), text, "{change}");
    }
    set(&mut host, &["idle=all", "idle=10m"]).unwrap();
    assert_eq!(shown(&with_backing(LayoutKind::Blocks), "compressed_writeback"), "0");
}

#[test]
fn both_marks_are_set_in_either_order_and_never_cross() {
    let mut host = with_backing(LayoutKind::Log);
    let marks = |h: &Bare| (shown(h, "park_high"), shown(h, "park_low"));
    let are = |h: &Bare, high: &str, low: &str| assert_eq!(marks(h), (high.into(), low.into()));
    for (changes, high, low) in [
        (["park_high=50", "park_low=30"], "50", "30"),
        (["park_high=90", "park_low=80"], "90", "80"),
        (["park_low=20", "park_high=40"], "40", "20"),
        (["park_low=60", "park_high=70"], "70", "60"),
    ] {
        set(&mut host, &changes).unwrap();
        are(&host, high, low);
    }
    for bad in [&["park_high=59"][..], &["park_low=71"], &["mem_limit=5M", "park_high=3", "park_low=4"]] {
        assert_eq!(set(&mut host, bad).unwrap_err().exit, Exit::Usage);
        are(&host, "70", "60");
        assert_eq!(shown(&host, "mem_limit"), "1048576");
    }
}

#[test]
fn writeback_takes_zrams_words() {
    let mut host = with_backing(LayoutKind::Log);
    set(&mut host, &["writeback=type=idle page_indexes=1-9 huge"]).unwrap();
    assert_eq!(host.parked, ["type=idle page_indexes=1-9 huge".parse().unwrap()]);
    for (bad, errno) in [("old", "EINVAL"), ("", "EINVAL"), ("page_indexes=5-4", "ERANGE")] {
        let e = set(&mut host, &["park_high=99", &format!("writeback={bad}")]).unwrap_err();
        assert_eq!(e.exit, Exit::Usage);
        assert!(e.message.contains(errno), "{e}");
    }
    assert_eq!(shown(&host, "park_high"), "90");
    assert_eq!(host.parked.len(), 1);
}

#[test]
fn without_a_backing_attributes_of_parking_say_so() {
    let mut host = without_backing();
    assert_eq!(shown(&host, "backing_dev"), "none");
    for name in ["bd_stat", "writeback_limit", "park_high", "compressed_writeback"] {
        let e = find(name).unwrap().show(&host.disk).unwrap_err();
        assert_eq!(e.exit, Exit::Unavailable, "{name}");
        assert!(e.message.contains("ENODEV") && e.message.contains("--backing"), "{name}: {e}");
    }
    for change in ["writeback_limit=1", "promote=1", "park_low=1", "park_rate=1", "idle=all"] {
        assert_eq!(set(&mut host, &[change]).unwrap_err().exit, Exit::Unavailable, "{change}");
    }
}

#[test]
fn reset_forgets_all_pages_unless_the_device_is_in_use() {
    let mut host = with_backing(LayoutKind::Log);
    host.disk.store().write(4096, &[7; 8192]).unwrap();
    host.users = vec!["1 NBD client".to_string()];
    let e = set(&mut host, &["reset=1"]).unwrap_err();
    assert_eq!(e.exit, Exit::Busy);
    assert!(e.message.contains("1 NBD client") && e.message.contains("EBUSY"), "{e}");
    assert_eq!(host.disk.store().stats().mm.orig_data_size, 8192);
    host.users.clear();
    set(&mut host, &["reset=1"]).unwrap();
    assert_eq!(host.disk.store().stats().mm.orig_data_size, 0);
}

#[test]
fn wrong_changes_say_what_is_possible() {
    for (change, hint) in [
        ("mem_limit", "ATTRIBUTE=VALUE"),
        ("nosuch=1", "mem_limit"),
        ("size=1G", "mem_limit"),
        ("backing_dev=/dev/sda", "cannot be set"),
        ("mem_limit=lots", "4G"),
        ("mem_used_max=1", "0 only"),
        ("same_filled_pages_enabled=2", "on or off"),
        ("compact=", "1 only"),
        ("reset=0", "1 only"),
        ("writeback_batch_size=0", "1 to 1024"),
        ("writeback_batch_size=1025", "1 to 1024"),
        ("writeback_limit=-1", "a number"),
        ("park_high=0", "1 to 100"),
        ("park_low=101", "1 to 100"),
        ("park_busy=x", "0 to 100"),
        ("park_age=soon", "10m"),
        ("idle=old", "'all'"),
        ("promote_window=5000000000", "136 years"),
        ("park_rate=fast", "4G"),
    ] {
        let e = parse_change(change).map(|_| ()).unwrap_err();
        assert_eq!(e.exit, Exit::Usage);
        assert!(e.message.contains(hint), "{change}: {e}");
    }
    assert!(find("compact").unwrap().show(&without_backing().disk).is_err());
}

#[test]
fn statistics_have_zrams_columns() {
    let host = without_backing();
    assert_eq!(shown(&host, "mm_stat").len(), 9 * 8 + 8);
    assert_eq!(shown(&host, "io_stat"), "       0        0        0        0");
}
