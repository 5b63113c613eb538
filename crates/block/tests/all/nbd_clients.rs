//! Tests of the NBD server with other projects' clients: libnbd, QEMU and fio.
//!
//! With `PAGEFOLD_LONG=1`, nbdcopy copies a hundred times instead of ten.

use crate::support::nbd::*;
use pagefold_block::RamDevice;
use pagefold_testkit::noise;
use std::path::PathBuf;
use std::sync::Arc;

const LEN: usize = 64 << 20;

fn served() -> Served {
    Served::new(Arc::new(RamDevice::new(LEN as u64)))
}

fn repetitions() -> u64 {
    if std::env::var_os("PAGEFOLD_LONG").is_some_and(|v| v == "1") { 100 } else { 10 }
}

/// Data in pieces of three kinds: pseudo-random bytes, one repeated byte, and zeroes. It differs for each seed.
fn image(seed: u64) -> Vec<u8> {
    let mut data = vec![0; LEN];
    for (i, piece) in data.chunks_mut(160 << 10).enumerate() {
        match (i as u64 + seed) % 3 {
            0 => piece.copy_from_slice(&noise(seed * 1000 + i as u64, piece.len())),
            1 => piece.fill((seed + i as u64) as u8),
            _ => {}
        }
    }
    data
}

fn files(dir: &tempfile::TempDir) -> [PathBuf; 2] {
    ["source", "copy"].map(|name| dir.path().join(name))
}

#[test]
fn nbdinfo_reports_name_size_and_features() {
    let name = "nbdinfo_reports_name_size_and_features";
    if !have("nbdinfo", name) {
        return;
    }
    let served = served();
    let info = run("nbdinfo", &["--json", &served.uri()]);
    for fact in [
        "\"export-name\": \"disk\"",
        "\"description\": \"a test disk\"",
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"can_multi_conn\": true",
        "\"can_df\": true",
        "\"can_fua\": true",
        "\"can_fast_zero\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_flush\": true",
        "\"is_read_only\": false",
        "\"block_size_minimum\": 1,",
        "\"block_size_preferred\": 4096,",
        "\"block_size_maximum\": 33554432,",
        "\"export-size\": 67108864,",
        "base:allocation",
    ] {
        assert!(info.contains(fact), "{fact} not in {info}");
    }
    assert!(run("nbdinfo", &["--list", &served.uri()]).contains("export=\"disk\""));
    assert!(run("nbdinfo", &["--map", &served.uri()]).contains("data"));
}

#[test]
fn nbdcopy_with_four_connections_copies_exactly_every_time() {
    if !have("nbdcopy", "nbdcopy_with_four_connections_copies_exactly_every_time") {
        return;
    }
    let served = served();
    let dir = tempfile::tempdir().unwrap();
    let [source, copy] = files(&dir);
    for round in 0..repetitions() {
        let data = image(round);
        std::fs::write(&source, &data).unwrap();
        run("nbdcopy", &["--connections=4", text(&source), &served.uri()]);
        run("nbdcopy", &["--connections=4", &served.uri(), text(&copy)]);
        assert!(std::fs::read(&copy).unwrap() == data, "round {round}");
    }
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn nbdcopy_between_two_pagefold_servers_copies_exactly() {
    if !have("nbdcopy", "nbdcopy_between_two_pagefold_servers_copies_exactly") {
        return;
    }
    let (a, b) = (served(), served());
    let dir = tempfile::tempdir().unwrap();
    let [source, copy] = files(&dir);
    let data = image(77);
    std::fs::write(&source, &data).unwrap();
    run("nbdcopy", &["--flush", text(&source), &a.uri()]);
    run("nbdcopy", &["--connections=4", "--requests=16", &a.uri(), &b.uri()]);
    run("nbdcopy", &["--synchronous", &b.uri(), text(&copy)]);
    assert!(std::fs::read(&copy).unwrap() == data);
}

#[test]
fn qemu_img_converts_both_ways() {
    if !have("qemu-img", "qemu_img_converts_both_ways") {
        return;
    }
    let served = served();
    let dir = tempfile::tempdir().unwrap();
    let [source, copy] = files(&dir);
    std::fs::write(&source, image(5)).unwrap();
    let uri = served.uri();
    assert!(run("qemu-img", &["info", &uri]).contains("64 MiB (67108864 bytes)"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, text(&copy)]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&copy).unwrap());
    // Write and check a format with metadata through the export.
    run("qemu-img", &["create", "-f", "qcow2", &uri, "32M"]);
    assert!(run("qemu-img", &["check", "-f", "qcow2", &uri]).contains("No errors"));
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn qemu_io_patterns_read_back() {
    if !have("qemu-io", "qemu_io_patterns_read_back") {
        return;
    }
    let served = served();
    let commands = [
        "write -P 0xab 0 1M",
        "write -P 0x5a 513 12345",
        "read -P 0xab 0 513",
        "read -P 0x5a 513 12345",
        "write -z 4k 64k",
        "read -P 0 4k 64k",
        "write -z -u 100 100",
        "read -P 0 100 100",
        "discard 512k 128k",
        "read -P 0 512k 128k",
        "write -f -P 0x11 2M 3M",
        "aio_write -P 0x22 8M 32M",
        "aio_flush",
        "flush",
        "read -P 0x22 8M 32M",
        "read -P 0x11 2M 3M",
    ];
    let mut args = vec!["-f", "raw"];
    commands.iter().for_each(|c| args.extend_from_slice(&["-c", c]));
    let uri = served.uri();
    args.push(&uri);
    let out = run("qemu-io", &args);
    assert!(!out.contains("verification failed") && !out.contains("error"), "{out}");
    assert_eq!(served.server.counters().failed, 0);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let name = "fio_verifies_what_it_wrote";
    if !have("fio", name) {
        return;
    }
    if !run("fio", &["--enghelp"]).contains("nbd") {
        return pagefold_testkit::skipped!("{name}: fio is built without its nbd engine");
    }
    let served = served();
    let uri = format!("--uri={}", served.uri());
    for (rw, bs) in [("randwrite", "--bsrange=512-64k"), ("randwrite", "--bs=4k"), ("write", "--bs=1m")] {
        let rw = format!("--rw={rw}");
        run(
            "fio",
            &[
                "--name=v",
                "--ioengine=nbd",
                &uri,
                &rw,
                bs,
                "--iodepth=32",
                "--size=32m",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
            ],
        );
    }
    let trims = "--trim_percentage=10";
    run(
        "fio",
        &[
            "--name=m",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=16",
            "--size=32m",
            "--numjobs=2",
            trims,
        ],
    );
    assert_eq!(served.server.counters().failed, 0);
}
