use super::*;
use crate::disk::{Medium, Setup};
use pagefold_backing::MemoryBacking;
use pagefold_control::config::{CodecConfig, DiskConfig};
use pagefold_control::error::Exit;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::{LayoutKind, Selection};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A server without an export.
struct TestTarget {
    disk: Disk,
    files: NamedFiles,
    written_back: Vec<Selection>,
    recompressed: Vec<RecompressRequest>,
    /// The error of the next pass of writeback.
    pass_failure: Option<CliError>,
}

impl AttributeTarget for TestTarget {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn named_file(&self, path: &Path) -> Result<(File, PathBuf)> {
        self.files.find(path)
    }

    fn reopen(&self, _: &File) -> Option<File> {
        None
    }

    fn initialise(&mut self, size_bytes: u64) -> Result<()> {
        let live = self.disk.new_running(size_bytes)?;
        self.disk.lock().set_running(Some(Arc::new(live)));
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.disk.lock().clear();
        Ok(())
    }

    fn write_back(&mut self, selection: &Selection) -> Result<()> {
        self.written_back.push(selection.clone());
        self.pass_failure.take().map_or(Ok(()), Err)
    }

    fn recompress(&mut self, request: &RecompressRequest) -> Result<()> {
        self.recompressed.push(request.clone());
        Ok(())
    }
}

/// A disk without a size and with the default settings.
fn without_size() -> TestTarget {
    let mut target = without_backing();
    target.reset().unwrap();
    target
}

fn target(medium: Option<Medium>) -> TestTarget {
    let config = DiskConfig {
        further_codecs: vec![CodecConfig { name: "zstd".into(), level: Some(3), ..CodecConfig::default() }],
        mem_limit_bytes: Some(1 << 20),
        ..DiskConfig::new(1 << 20, "lz4", ExportKind::Nbd)
    };
    let disk = Disk::new(InstanceName::parse("disk0").unwrap(), &config, medium, None).unwrap();
    TestTarget {
        disk,
        files: NamedFiles::default(),
        written_back: Vec::new(),
        recompressed: Vec::new(),
        pass_failure: None,
    }
}

fn without_backing() -> TestTarget {
    target(None)
}

fn with_backing(layout: LayoutKind) -> TestTarget {
    target(Some(medium(layout)))
}

fn medium(layout: LayoutKind) -> Medium {
    let backing = Arc::new(MemoryBacking::new(32 << 20));
    Medium {
        backing,
        path: "/var/backing".into(),
        file: Arc::new(std::fs::File::open("/dev/null").unwrap()),
        alone: None,
        delay_us: 0,
        created: None,
        layout,
        rate_bytes_per_s: 5,
        daily_bytes: 7,
    }
}

fn set(target: &mut TestTarget, changes: &[&str]) -> Result<()> {
    let parsed = changes.iter().map(|c| parse_change(c)).collect::<Result<_>>()?;
    target.files = open_files(changes.iter().filter_map(|c| c.split_once('=')), Syntax::Command);
    apply(target, parsed)
}

/// As a write to the file of an attribute does.
fn write(target: &mut TestTarget, name: &str, text: &str) -> Result<()> {
    target.files = open_files([(name, text)], Syntax::Kernel);
    super::write(target, name, text)
}

fn shown(target: &TestTarget, name: &str) -> String {
    find(name).unwrap().show(&target.disk).unwrap()
}

#[test]
fn the_attributes_of_codecs_are_those_of_zram() {
    let mut target = without_backing();
    let shown = |target: &TestTarget, name: &str| find(name).unwrap().show(&target.disk).unwrap();
    assert_eq!(shown(&target, "comp_algorithm"), "lzo-rle lzo [lz4] lz4hc zstd deflate 842 ");
    assert_eq!(shown(&target, "recomp_algorithm"), "#1: lzo-rle lzo lz4 lz4hc [zstd] deflate 842 ");
    assert_eq!(shown(&target, "debug_stat"), "version: 1\n0        0");
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
fn a_wrong_value_in_any_place_leaves_the_disk_as_it_is() {
    for bad in [
        "writeback=page_indexes=1-99999999",
        "recompress=algo=deflate",
        "recompress=priority=2",
        "disksize=1M",
        "comp_algorithm=zstd",
        "promote_window=x",
    ] {
        let mut target = with_backing(LayoutKind::Log);
        let e = set(&mut target, &["mem_limit=5M", "writeback=idle", "recompress=all", bad]).unwrap_err();
        let expected =
            if bad.contains("disksize") || bad.contains("comp_") { Exit::Busy } else { Exit::Usage };
        assert_eq!(e.exit, expected, "{bad}: {e}");
        assert_eq!(shown(&target, "mem_limit"), "1048576", "{bad}");
        assert!(target.written_back.is_empty() && target.recompressed.is_empty(), "{bad}");
    }
    let mut target = without_backing();
    for bad in ["promote=1", "writeback_rate=1M", "writeback=idle"] {
        assert_eq!(set(&mut target, &["mem_limit=5M", bad]).unwrap_err().exit, Exit::Unavailable, "{bad}");
        assert_eq!(shown(&target, "mem_limit"), "1048576", "{bad}");
    }
    let mut target = without_size();
    for bad in [
        "algorithm_params=priority=4 level=1",
        "algorithm_params=dict=/nonexistent",
        "backing_dev=/dev/null",
        "disksize=65T",
        "compact=1",
        "recompress=all",
    ] {
        set(&mut target, &["comp_algorithm=zstd", bad]).unwrap_err();
        assert_eq!(shown(&target, "codec"), "lz4", "{bad}");
    }
    let params = ["comp_algorithm=deflate", "algorithm_params=level=99", "disksize=1M"];
    assert_eq!(set(&mut target, &params).unwrap_err().exit, Exit::Usage);
    assert_eq!(shown(&target, "codec"), "lz4");
}

#[test]
fn changes_that_need_each_other_are_tried_in_their_order() {
    let mut target = without_size();
    let changes =
        ["recomp_algorithm=algo=zstd priority=2", "disksize=1M", "recompress=algo=zstd", "idle=all"];
    set(&mut target, &changes).unwrap();
    assert_eq!((shown(&target, "size"), target.recompressed.len()), ("1048576".into(), 1));
    set(&mut target, &["reset=1", "comp_algorithm=zstd", "disksize=2M"]).unwrap();
    assert_eq!((shown(&target, "size"), shown(&target, "codec")), ("2097152".into(), "zstd".into()));
}

/// Whatever fails after the dry run may have changed something.
#[test]
fn no_usage_error_comes_after_the_first_change() {
    let mut target = with_backing(LayoutKind::Log);
    target.pass_failure = Some(CliError::usage("no such page"));
    let e = set(&mut target, &["mem_limit=5M", "idle=all", "writeback=idle"]).unwrap_err();
    assert_eq!(e.exit, Exit::Failed);
    assert!(e.message.ends_with("changed before this: mem_limit, idle"), "{e}");
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
fn attributes_of_automatic_writeback_fail_without_a_backing() {
    let mut target = without_backing();
    assert_eq!(shown(&target, "backing_dev"), "none");
    for name in ["writeback_high", "promote"] {
        let e = find(name).unwrap().show(&target.disk).unwrap_err();
        assert_eq!((e.exit, e.errno), (Exit::Unavailable, Some(libc::ENODEV)), "{name}");
        assert!(e.message.contains("ENODEV") && e.message.contains("--backing"), "{name}: {e}");
    }
    for change in ["promote=1", "writeback_low=1", "writeback_rate=1"] {
        assert_eq!(set(&mut target, &[change]).unwrap_err().exit, Exit::Unavailable, "{change}");
    }
}

#[test]
fn zrams_settings_of_writeback_need_no_backing_and_count_when_there_is_one() {
    for mut target in [without_backing(), without_size()] {
        let changes = ["writeback_limit=12", "writeback_limit_enable=1", "writeback_batch_size=7"];
        set(&mut target, &changes).unwrap();
        for (name, text) in
            [("writeback_limit", "12"), ("writeback_limit_enable", "1"), ("writeback_batch_size", "7")]
        {
            assert_eq!(shown(&target, name), text, "{name}");
        }
        assert_eq!(shown(&target, "bd_stat"), "       0        0        0");
    }
    let mut target = without_size();
    set(&mut target, &["writeback_limit=12", "writeback_batch_size=7", "compressed_writeback=0"]).unwrap();
    let add_medium = |setup: &mut Setup| {
        setup.medium = Some(medium(LayoutKind::Log));
        Ok(())
    };
    target.disk.lock().change_setup(add_medium).unwrap();
    set(&mut target, &["disksize=1M"]).unwrap();
    for (name, text) in
        [("writeback_limit", "12"), ("writeback_batch_size", "7"), ("compressed_writeback", "0")]
    {
        assert_eq!(shown(&target, name), text, "{name}");
    }
    set(&mut target, &["writeback_limit=3"]).unwrap();
    assert_eq!(shown(&target, "writeback_limit"), "3");
}

#[test]
fn a_reset_disk_has_no_size_no_pages_and_the_default_settings() {
    let mut target = with_backing(LayoutKind::Log);
    target.disk.store().unwrap().write(4096, &[7; 8192]).unwrap();
    set(&mut target, &["writeback_limit=12", "reset=1"]).unwrap();
    for (name, text) in [
        ("size", "0"),
        ("disksize", "0"),
        ("initstate", "0"),
        ("mem_limit", "0"),
        ("backing_dev", "none"),
        ("writeback_limit", "0"),
        ("recomp_algorithm", ""),
        ("codec", "lz4"),
        ("mm_stat", &[8; 9].map(|width| format!("{:width$}", 0)).join(" ")),
    ] {
        assert_eq!(shown(&target, name), text, "{name}");
    }
}

#[test]
fn a_disk_takes_its_settings_before_its_size_and_no_longer_after_it() {
    let mut target = without_size();
    let settings = [
        ("comp_algorithm", "zstd\n"),
        ("algorithm_params", "level=-5"),
        ("recomp_algorithm", "algo=deflate priority=3\n"),
        ("algorithm_params", "algo=deflate level=9 colour=blue"),
        ("mem_limit", "0x100000\n"),
    ];
    for (name, text) in settings {
        write(&mut target, name, text).unwrap();
    }
    let e = write(&mut target, "disksize", "0").unwrap_err();
    assert_eq!(e.errno, Some(libc::EINVAL));
    write(&mut target, "disksize", "1000000 bytes\n").unwrap();
    let store = target.disk.store().unwrap();
    assert_eq!((store.codec(), store.codec_of(3)), (("zstd", Some(-5)), Some(("deflate", Some(9)))));
    assert_eq!((store.codec_of(1), store.len_bytes()), (None, 1_003_520));
    assert_eq!(store.stats().mm.mem_limit, 1 << 20);
    assert!(
        shown(&target, "recomp_algorithm").starts_with("#3: ")
            && shown(&target, "comp_algorithm").contains("[zstd]")
    );
    for (name, text) in
        settings.into_iter().take(4).chain([("disksize", "1M"), ("compressed_writeback", "1")])
    {
        let e = write(&mut target, name, text).unwrap_err();
        assert_eq!((e.errno, e.exit), (Some(libc::EBUSY), Exit::Busy), "{name}: {e}");
        assert!(e.message.contains("reset"), "{e}");
    }
    write(&mut target, "mem_limit", "2M").unwrap();
    assert_eq!(store.stats().mm.mem_limit, 2 << 20);
}

#[test]
fn a_codec_that_does_not_take_its_parameters_gets_no_size() {
    let mut target = without_size();
    write(&mut target, "algorithm_params", "level=99").unwrap();
    write(&mut target, "comp_algorithm", "deflate").unwrap();
    let e = write(&mut target, "disksize", "1M").unwrap_err();
    assert_eq!(e.errno, Some(libc::EINVAL), "{e}");
    assert_eq!(shown(&target, "initstate"), "0");
    write(&mut target, "algorithm_params", "level=1").unwrap();
    write(&mut target, "disksize", "1M").unwrap();

    let mut target = without_size();
    write(&mut target, "comp_algorithm", "deflate").unwrap();
    for (bits, is_valid) in [("-99", false), ("8", false), ("-16", false), ("15", true), ("-9", true)] {
        write(&mut target, "algorithm_params", &format!("deflate.winbits={bits}")).unwrap();
        assert_eq!(write(&mut target, "disksize", "1M").is_ok(), is_valid, "{bits}");
        if is_valid {
            target.disk.store().unwrap().write(0, &[7; 5000]).unwrap();
            target.disk.lock().set_running(None);
        }
    }
    for wrong in ["priority=4 level=1", "algo=lz4 level=1", "algo=deflate priority=1 level=1"] {
        assert_eq!(
            write(&mut target, "algorithm_params", wrong).unwrap_err().errno,
            Some(libc::EINVAL),
            "{wrong}"
        );
    }
    // As in zram, an algorithm ignores what it has no use for, and takes the nearest level that it has.
    write(&mut target, "comp_algorithm", "lz4hc").unwrap();
    write(&mut target, "algorithm_params", "algo=lz4hc priority=0 level=100").unwrap();
    write(&mut target, "disksize", "1M").unwrap();
    assert_eq!(target.disk.store().unwrap().codec(), ("lz4hc", Some(16)));
    target.disk.lock().set_running(None);
    write(&mut target, "comp_algorithm", "lzo").unwrap();
    write(&mut target, "algorithm_params", "level=3").unwrap();
    write(&mut target, "disksize", "1M").unwrap();
}

#[test]
fn parameters_can_be_chosen_before_their_algorithm() {
    let mut target = without_size();
    write(&mut target, "algorithm_params", "priority=2 level=7").unwrap();
    assert_eq!(shown(&target, "recomp_algorithm"), "");
    assert!(write(&mut target, "algorithm_params", "algo=zstd level=8").is_err());
    write(&mut target, "recomp_algorithm", "algo=zstd priority=2").unwrap();
    write(&mut target, "disksize", "1M").unwrap();
    let store = target.disk.store().unwrap();
    assert_eq!(store.further_codecs().collect::<Vec<_>>(), [(2, "zstd", Some(7))]);

    let mut target = without_size();
    write(&mut target, "algorithm_params", "priority=3 level=7").unwrap();
    write(&mut target, "disksize", "1M").unwrap();
    assert_eq!(target.disk.store().unwrap().further_codecs().count(), 0);
}

#[test]
fn what_needs_a_size_is_refused_without_one() {
    let mut target = without_size();
    for (name, text) in
        [("compact", "1"), ("idle", "all"), ("writeback", "idle"), ("recompress", "type=idle")]
    {
        let e = write(&mut target, name, text).unwrap_err();
        assert_eq!(e.errno, Some(libc::EINVAL), "{name}");
        assert!(e.message.contains("disksize"), "{name}: {e}");
    }
    write(&mut target, "mem_used_max", "0").unwrap();
    write(&mut target, "max_comp_streams", "4\n").unwrap();
    assert!(target.written_back.is_empty() && target.recompressed.is_empty());
}

/// Each attribute of zram, with texts that it refuses in any state, and zram's error number.
#[test]
fn wrong_texts_have_zrams_error_numbers() {
    let long = "x".repeat(128);
    for mut target in [without_size(), with_backing(LayoutKind::Log)] {
        for (name, text, errno) in [
            ("disksize", "lots", libc::EINVAL),
            ("reset", "0", libc::EINVAL),
            ("reset", "65536", libc::ERANGE),
            ("reset", "yes", libc::EINVAL),
            ("mem_limit", "", libc::EINVAL),
            ("mem_limit", "-1", libc::EINVAL),
            ("mem_used_max", "1", libc::EINVAL),
            ("idle", "old", libc::EINVAL),
            ("comp_algorithm", "nosuch", libc::EINVAL),
            ("comp_algorithm", &long, libc::E2BIG),
            ("recomp_algorithm", "priority=1", libc::EINVAL),
            ("recomp_algorithm", "algo=zstd priority=4", libc::EINVAL),
            ("recomp_algorithm", "algo=zstd priority=0", libc::EINVAL),
            ("recomp_algorithm", "algo", libc::EINVAL),
            ("algorithm_params", "level=high", libc::EINVAL),
            ("algorithm_params", "level=-+5", libc::EINVAL),
            ("algorithm_params", "level", libc::EINVAL),
            ("max_comp_streams", "many", libc::EINVAL),
            ("writeback_limit", "-1", libc::EINVAL),
            ("writeback_limit_enable", "on", libc::EINVAL),
            ("writeback_batch_size", "0", libc::EINVAL),
            ("compressed_writeback", "2", libc::EINVAL),
            ("writeback", "nosuch", libc::EINVAL),
            ("recompress", "priority=9", libc::EINVAL),
        ] {
            let e = write(&mut target, name, text).unwrap_err();
            assert_eq!(e.errno, Some(errno), "{name} {text:?}: {e}");
        }
        write(&mut target, "writeback_batch_size", "4000000000").unwrap();
        assert_eq!(shown(&target, "writeback_batch_size"), "1024");
    }
    let mut target = without_size();
    let regular = tempfile::tempdir().unwrap();
    let (other, zeroes) = (regular.path().join("other"), regular.path().join("zeroes"));
    std::fs::write(&other, vec![7; 1 << 20]).unwrap();
    std::fs::write(&zeroes, vec![0; 1 << 20]).unwrap();
    let e = write(&mut target, "backing_dev", other.to_str().unwrap()).unwrap_err();
    assert_eq!(e.errno, Some(libc::ENOTBLK), "{e}");
    write(&mut target, "backing_dev", zeroes.to_str().unwrap()).unwrap();
    let pipe = regular.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let e = write(&mut target, "algorithm_params", &format!("dict={}", pipe.display())).unwrap_err();
    assert_eq!(e.errno, Some(libc::EINVAL), "{e}");
    for (path, errno) in [
        ("/nonexistent/x", libc::ENOENT),
        (regular.path().to_str().unwrap(), libc::EISDIR),
        ("/dev/null", libc::ENOTBLK),
        ("sda", libc::ENOENT),
        ("/dev/zram0", libc::EINVAL),
    ] {
        let e = write(&mut target, "backing_dev", &format!("{path}\n")).unwrap_err();
        assert_eq!(e.errno, Some(errno), "{e}");
    }
}

#[test]
fn a_selection_is_read_as_the_kernel_reads_it() {
    let mut target = with_backing(LayoutKind::Log);
    for (text, same) in [
        ("idle huge\n", "idle"),
        ("page_index=+1 page_indexes=010-11 idle page_index=x", "page_index=1 page_indexes=10-11 idle"),
        ("page_index=3 type=huge type=bad", "page_index=3 huge"),
        ("type=\"idle\"", "idle"),
        ("huge\0junk", "huge"),
    ] {
        write(&mut target, "writeback", text).unwrap();
        assert_eq!(target.written_back.pop(), Some(same.parse().unwrap()), "{text}");
    }
    for text in ["", "\n", " \n", "colour=blue"] {
        write(&mut target, "writeback", text).unwrap();
        assert!(target.written_back.is_empty(), "{text:?}");
    }
    for (text, errno) in [
        ("page_index=18446744073709551616", libc::ERANGE),
        ("page_indexes=5-4", libc::ERANGE),
        ("page_indexes=5", libc::EINVAL),
        ("page_index=0x1", libc::EINVAL),
        ("unknown", libc::EINVAL),
    ] {
        assert_eq!(write(&mut target, "writeback", text).unwrap_err().errno, Some(errno), "{text}");
    }
    // Without a backing, the text does not matter.
    assert_eq!(write(&mut without_backing(), "writeback", "unknown").unwrap_err().errno, Some(libc::ENODEV));
}

#[test]
fn unknown_keys_are_ignored_in_files_and_refused_on_command_lines() {
    let mut target = with_backing(LayoutKind::Log);
    write(&mut target, "writeback", "type=huge colour=blue").unwrap();
    assert_eq!(target.written_back, ["huge".parse().unwrap()]);
    write(&mut target, "recompress", "colour=blue type=huge").unwrap();
    assert_eq!(target.recompressed, ["type=huge".parse().unwrap()]);
    for change in ["writeback=type=huge colour=blue", "recompress=colour=blue type=huge"] {
        assert_eq!(set(&mut target, &[change]).unwrap_err().exit, Exit::Usage);
    }
}

#[test]
fn files_of_the_attribute_tree_can_be_used_as_their_modes_say() {
    for attribute in all() {
        let Some(mode) = attribute.mode else { continue };
        assert!(mode & 0o444 == 0 || attribute.show.is_some(), "{}", attribute.name);
        assert_eq!(mode & 0o200 != 0, attribute.change.is_some(), "{}", attribute.name);
    }
}

#[test]
fn errors_of_wrong_changes_list_the_possible_values() {
    for (change, hint) in [
        ("mem_limit", "ATTRIBUTE=VALUE"),
        ("nosuch=1", "mem_limit"),
        ("memory=1G", "did you mean 'mem_limit'?"),
        ("recompress-codec=zstd", "did you mean 'recomp_algorithm'?"),
        ("size=1G", "mem_limit"),
        ("mem_limit=lots", "4G"),
        ("mem_used_max=1", "valid value is 0"),
        ("same_filled_pages_enabled=2", "on or off"),
        ("compact=", "valid value is 1"),
        ("reset=0", "valid value is 1"),
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
    assert_eq!(shown(&target, "io_stat"), "       0        0 0        0");
}
