//! Disks that compress pages again: on request, with zram's words, and automatically.

use crate::support::writeback::{assert_reads, connect, pages, write};
use crate::support::{Nbd, Sandbox, wait_until};
use serde_json::Value;

fn create(s: &Sandbox, options: &str) -> Nbd {
    s.ok(&format!("disk create -q --export nbd --size 16M --name x {options}"));
    connect(s)
}

fn recompress(s: &Sandbox, options: &str) -> Value {
    serde_json::from_str(&s.ok(&format!("disk recompress x --json {options}"))).unwrap()
}

#[test]
fn pages_are_compressed_again_and_read_as_before() {
    let s = Sandbox::new();
    let mut client = create(&s, "--recompress-codec zstd:3 --recompress-codec deflate:9");
    // 256 raw, 512 compressed and 256 same-filled pages.
    let data = pages(1024, 3);
    write(&mut client, &data);
    let before = s.show("x")["compressed_bytes"].as_u64().unwrap();
    let report = recompress(&s, "");
    let (done, not_smaller) = (report["recompressed_pages"].as_u64().unwrap(), &report["not_smaller_pages"]);
    assert!(done + not_smaller.as_u64().unwrap() == 768 && done > 0, "{report}");
    let saved = report["old_bytes"].as_u64().unwrap() - report["new_bytes"].as_u64().unwrap();
    let shown = s.show("x");
    assert_eq!(shown["compressed_bytes"].as_u64().unwrap(), before - saved);
    assert_eq!(shown["recompression"]["saved_bytes"].as_u64().unwrap(), saved);
    assert_eq!(shown["recompression"]["codecs"][0]["pages"].as_u64().unwrap(), done);
    assert_reads(&mut client, &data);
    // Nothing is tried twice, and a higher priority is another try.
    assert_eq!(recompress(&s, "")["not_smaller_pages"], 0);
    assert!(recompress(&s, "--codec deflate --max-pages 10")["not_smaller_pages"].as_u64().unwrap() <= 10);
    s.ok("disk set x recompress=priority=2");
    assert_reads(&mut client, &data);
    assert!(s.ok("disk show x").contains("Recompressed"));
}

#[test]
fn cold_pages_are_compressed_again_automatically() {
    let s = Sandbox::new();
    let mut client = create(&s, "--recompress-after 1s=zstd:3");
    // Other tests keep the CPUs busy.
    s.ok("disk set x recompress_busy=0");
    let data = pages(1024, 5);
    write(&mut client, &data);
    wait_until("pages are compressed again", || {
        s.show("x")["recompression"]["recompressed_pages"].as_u64().unwrap() > 0
    });
    assert_reads(&mut client, &data);
    assert_eq!(s.show("x")["recompression"]["codecs"][0]["after_s"], 1);
    s.ok("disk remove x --force");
    assert!(s.left().is_empty());
}

#[test]
fn wrong_requests_are_refused_with_advice() {
    let s = Sandbox::new();
    s.run("disk create --size 1M --recompress-after 10m").fails(2, "AGE=CODEC");
    s.run("disk create --size 1M --recompress-codec zsdt").fails(2, "zsdt");
    let _client = create(&s, "");
    s.run("disk recompress x").fails(2, "--recompress-codec");
    s.run("disk recompress x --codec zstd").fails(2, "EINVAL");
    s.run("disk recompress x --threshold 3968").fails(2, "too large");
    s.run("disk set x recompress=type=cold").fails(2, "type=idle");
    s.ok("disk set x idle=all");
    assert_eq!(
        s.ok("disk show x --attribute comp_algorithm").trim_end(),
        "lzo-rle lzo [lz4] lz4hc zstd deflate 842"
    );
}
