use super::*;
use crate::disk::Medium;
use pagefold_backing::MemoryBacking;
use pagefold_control::config::{CodecConfig, DiskConfig, ExportChoice};
use pagefold_control::instance::InstanceName;
use pagefold_store::writeback::LayoutKind;
use std::sync::Arc;

/// A server without an export.
struct TestTarget {
    disk: Disk,
    users: Vec<String>,
    written_back: Vec<Selection>,
    recompressed: Vec<RecompressRequest>,
}

impl AttributeTarget for TestTarget {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn users(&self) -> Vec<String> {
        self.users.clone()
    }

    fn write_back(&mut self, selection: &Selection) -> Result<()> {
        self.written_back.push(selection.clone());
        Ok(())
    }

    fn recompress(&mut self, request: &RecompressRequest) -> Result<()> {
        self.recompressed.push(request.clone());
        Ok(())
    }
}

fn target(medium: Option<Medium>) -> TestTarget {
    let config = DiskConfig {
        size_bytes: 1 << 20,
        codec: CodecConfig { name: "lz4".into(), level: None, dictionary: None },
        further_codecs: vec![CodecConfig { name: "zstd".into(), level: Some(3), dictionary: None }],
        recompress_after: Vec::new(),
        mem_limit_bytes: Some(1 << 20),
        export: ExportChoice::Nbd,
        uncompressed: false,
        listen: None,
        backing: None,
    };
    let disk = Disk::new(InstanceName::parse("disk0").unwrap(), &config, medium).unwrap();
    TestTarget { disk, users: Vec::new(), written_back: Vec::new(), recompressed: Vec::new() }
}

fn without_backing() -> TestTarget {
    target(None)
}

fn with_backing(layout: LayoutKind) -> TestTarget {
    let backing = Arc::new(MemoryBacking::new(32 << 20));
    target(Some(Medium {
        backing,
        path: "/var/backing".into(),
        created: false,
        layout,
        rate_bytes_per_s: 5,
        daily_bytes: 7,
    }))
}

fn set(target: &mut TestTarget, changes: &[&str]) -> Result<()> {
    let parsed = changes.iter().map(|c| parse_change(c)).collect::<Result<_>>()?;
    apply(target, parsed)
}

fn shown(target: &TestTarget, name: &str) -> String {
    find(name).unwrap().show(&target.disk).unwrap()
}

#[test]
fn the_attributes_of_codecs_are_those_of_zram() {
    let mut target = without_backing();
    let shown = |target: &TestTarget, name: &str| find(name).unwrap().show(&target.disk).unwrap();
    assert_eq!(shown(&target, "comp_algorithm"), "[lz4] lz4hc zstd deflate lzo lzo-rle ");
    assert_eq!(shown(&target, "recomp_algorithm"), "#1: lz4 lz4hc [zstd] deflate lzo lzo-rle ");
    assert_eq!(shown(&target, "debug_stat"), "version: 1\n       0        0");
    assert_eq!((shown(&target, "initstate"), shown(&target, "disksize")), ("1".into(), "1048576".into()));
    let cpus = shown(&target, "max_comp_streams");
    set(
        &mut target,
        &["max_comp_streams=99", "idle=all", "recompress=type=huge max_pages=3", "recompress=all"],
    )
    .unwrap();
    assert_eq!(shown(&target, "max_comp_streams"), cpus);
    assert_eq!(target.recompressed, ["type=huge max_pages=3".parse().unwrap(), RecompressRequest::default()]);
    for bad in ["recompress=idle", "recompress=threshold=4000", "recompress=priority=0", "idle=old"] {
        assert_eq!(set(&mut target, &[bad]).unwrap_err().exit, Exit::Usage, "{bad}");
    }
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
fn attributes_show_the_values_that_were_set() {
    let mut target = without_backing();
    assert_eq!(shown(&target, "size"), "1048576");
    assert_eq!(shown(&target, "mem_limit"), "1048576");
    set(&mut target, &["mem_limit=2G"]).unwrap();
    assert_eq!(shown(&target, "mem_limit"), "2147483648");
    set(&mut target, &["mem_limit=0"]).unwrap();
    assert_eq!(shown(&target, "mem_limit"), "0");
    set(&mut target, &["same_filled_pages_enabled=off"]).unwrap();
    assert_eq!(shown(&target, "same_filled_pages_enabled"), "0");
    set(&mut target, &["compact=1", "mem_used_max=0", "latency=0"]).unwrap();
}

#[test]
fn attributes_of_writeback_show_the_values_that_were_set() {
    let mut target = with_backing(LayoutKind::Log);
    for (name, text) in [
        ("backing_dev", "/var/backing"),
        ("compressed_writeback", "1"),
        ("bd_stat", "       0        0        0"),
        ("writeback_rate", "5"),
        ("writeback_daily", "7"),
    ] {
        assert_eq!(shown(&target, name), text, "{name}");
    }
    for (change, text) in [
        ("writeback_limit=12", "12"),
        ("writeback_limit_enable=1", "1"),
        ("writeback_batch_size=1", "1"),
        ("writeback_batch_size=1024", "1024"),
        ("promote=off", "0"),
        ("promote_window=5m", "300"),
        ("writeback_high=95", "95"),
        ("writeback_low=30%", "30"),
        ("writeback_age=1h", "3600"),
        ("writeback_rate=50M/s", "52428800"),
        ("writeback_daily=20G", "21474836480"),
        ("writeback_busy=0", "0"),
    ] {
        set(&mut target, &[change]).unwrap();
        assert_eq!(shown(&target, change.split('=').next().unwrap()), text, "{change}");
    }
    set(&mut target, &["idle=all", "idle=10m"]).unwrap();
    assert_eq!(shown(&with_backing(LayoutKind::Blocks), "compressed_writeback"), "0");
}

#[test]
fn both_marks_can_be_set_in_either_order_and_low_never_exceeds_high() {
    let mut target = with_backing(LayoutKind::Log);
    let marks = |h: &TestTarget| (shown(h, "writeback_high"), shown(h, "writeback_low"));
    let are = |h: &TestTarget, high: &str, low: &str| assert_eq!(marks(h), (high.into(), low.into()));
    for (changes, high, low) in [
        (["writeback_high=50", "writeback_low=30"], "50", "30"),
        (["writeback_high=90", "writeback_low=80"], "90", "80"),
        (["writeback_low=20", "writeback_high=40"], "40", "20"),
        (["writeback_low=60", "writeback_high=70"], "70", "60"),
    ] {
        set(&mut target, &changes).unwrap();
        are(&target, high, low);
    }
    for bad in [
        &["writeback_high=59"][..],
        &["writeback_low=71"],
        &["mem_limit=5M", "writeback_high=3", "writeback_low=4"],
    ] {
        assert_eq!(set(&mut target, bad).unwrap_err().exit, Exit::Usage);
        are(&target, "70", "60");
        assert_eq!(shown(&target, "mem_limit"), "1048576");
    }
}

#[test]
fn writeback_accepts_zrams_words() {
    let mut target = with_backing(LayoutKind::Log);
    set(&mut target, &["writeback=type=idle page_indexes=1-9 huge"]).unwrap();
    assert_eq!(target.written_back, ["type=idle page_indexes=1-9 huge".parse().unwrap()]);
    for (bad, errno) in [("old", "EINVAL"), ("", "EINVAL"), ("page_indexes=5-4", "ERANGE")] {
        let e = set(&mut target, &["writeback_high=99", &format!("writeback={bad}")]).unwrap_err();
        assert_eq!(e.exit, Exit::Usage);
        assert!(e.message.contains(errno), "{e}");
    }
    assert_eq!(shown(&target, "writeback_high"), "90");
    assert_eq!(target.written_back.len(), 1);
}

#[test]
fn attributes_of_writeback_fail_without_a_backing() {
    let mut target = without_backing();
    assert_eq!(shown(&target, "backing_dev"), "none");
    for name in ["bd_stat", "writeback_limit", "writeback_high", "compressed_writeback"] {
        let e = find(name).unwrap().show(&target.disk).unwrap_err();
        assert_eq!(e.exit, Exit::Unavailable, "{name}");
        assert!(e.message.contains("ENODEV") && e.message.contains("--backing"), "{name}: {e}");
    }
    for change in ["writeback_limit=1", "promote=1", "writeback_low=1", "writeback_rate=1"] {
        assert_eq!(set(&mut target, &[change]).unwrap_err().exit, Exit::Unavailable, "{change}");
    }
}

#[test]
fn reset_discards_all_pages_unless_the_device_is_in_use() {
    let mut target = with_backing(LayoutKind::Log);
    target.disk.store().write(4096, &[7; 8192]).unwrap();
    target.users = vec!["1 NBD client".to_string()];
    let e = set(&mut target, &["reset=1"]).unwrap_err();
    assert_eq!(e.exit, Exit::Busy);
    assert!(e.message.contains("1 NBD client") && e.message.contains("EBUSY"), "{e}");
    assert_eq!(target.disk.store().stats().mm.orig_data_size, 8192);
    target.users.clear();
    set(&mut target, &["reset=1"]).unwrap();
    assert_eq!(target.disk.store().stats().mm.orig_data_size, 0);
}

#[test]
fn errors_of_wrong_changes_list_the_possible_values() {
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
        ("writeback_high=0", "1 to 100"),
        ("writeback_low=101", "1 to 100"),
        ("writeback_busy=x", "0 to 100"),
        ("writeback_age=soon", "10m"),
        ("idle=old", "'all'"),
        ("promote_window=5000000000", "136 years"),
        ("writeback_rate=fast", "4G"),
    ] {
        let e = parse_change(change).map(|_| ()).unwrap_err();
        assert_eq!(e.exit, Exit::Usage);
        assert!(e.message.contains(hint), "{change}: {e}");
    }
    assert!(find("compact").unwrap().show(&without_backing().disk).is_err());
}

#[test]
fn statistics_have_zrams_columns() {
    let target = without_backing();
    assert_eq!(shown(&target, "mm_stat").len(), 9 * 8 + 8);
    assert_eq!(shown(&target, "io_stat"), "       0        0        0        0");
}
