//! `image show`: the algorithms of an image, the uses of its bytes, damage, and a file with very many extents, which are printed
//! without being collected in memory.

use crate::images::handmade::{File, REGULAR, image_of, make_compressed, put_xattrs, xattr, xattr_area};
use crate::support::Sandbox;
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;
/// Number of extents: half of them data, half holes.
const EXTENTS: usize = 400_000;
/// Limit on the address space of the command. The extents in memory would take more.
const ADDRESS_SPACE_KIB: u32 = 300_000;

/// An image with one file, `/f`, of chunks of one block: the same block and a hole alternate.
pub fn image() -> Vec<u8> {
    let mut bytes = vec![0; 3 * BLOCK];
    let superblock = &mut bytes[1024..1152];
    superblock[0..4].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    superblock[12] = 12;
    superblock[0x28..0x2c].copy_from_slice(&1u32.to_le_bytes());
    // The feature of files in chunks.
    superblock[0x50..0x54].copy_from_slice(&4u32.to_le_bytes());
    let inode = |bytes: &mut [u8], slot: usize, format: u16, mode: u16, size: u64, first_block: u32| {
        let inode = &mut bytes[BLOCK + slot * 32..][..64];
        inode[0..2].copy_from_slice(&format.to_le_bytes());
        inode[4..6].copy_from_slice(&mode.to_le_bytes());
        inode[8..16].copy_from_slice(&size.to_le_bytes());
        inode[16..20].copy_from_slice(&first_block.to_le_bytes());
        inode[44..48].copy_from_slice(&1u32.to_le_bytes());
    };
    let entries = [(".", 0u64, 2u8), ("..", 0, 2), ("f", 2, 1)];
    let (mut heads, mut names) = (Vec::new(), Vec::new());
    for (name, nid, kind) in entries {
        heads.extend(nid.to_le_bytes());
        heads.extend(((entries.len() * 12 + names.len()) as u16).to_le_bytes());
        heads.extend([kind, 0]);
        names.extend(name.as_bytes());
    }
    let directory = [heads, names].concat();
    bytes[2 * BLOCK..][..directory.len()].copy_from_slice(&directory);
    inode(&mut bytes, 0, 1, 0o040_755, directory.len() as u64, 2);
    // Behind inode 1 the map of chunks would overlap the directory, so the inode of the file and its map are at the
    // end.
    let nid = (bytes.len() - BLOCK) / 32;
    bytes[2 * BLOCK + 24..][..8].copy_from_slice(&(nid as u64).to_le_bytes());
    bytes.resize(bytes.len() + 64, 0);
    inode(&mut bytes, nid, 1 | 4 << 1, 0o100_644, (EXTENTS * BLOCK) as u64, 0);
    bytes.extend((0..EXTENTS).flat_map(|n| if n % 2 == 0 { 1u32 } else { u32::MAX }.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

#[test]
fn show_of_a_file_with_many_extents_needs_little_memory() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("image");
    std::fs::write(&path, image()).unwrap();
    for (more, wanted) in [("", EXTENTS), ("--json", EXTENTS)] {
        let limit = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limit, env!("CARGO_BIN_EXE_pagefold"), "image", "show", "--memory", "4M"]);
        command.arg(&path).arg("/f").args(more.split_whitespace()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more}: {errors}");
        let lines = output.stdout.split(|&b| b == b'\n');
        let found = lines.filter(|line| line.ends_with(b"hole") || line.ends_with(b"plain"));
        let found = found.count() + output.stdout.windows(8).filter(|w| *w == b"\"place\":").count();
        assert_eq!(found, wanted, "{more}");
    }
}

#[test]
fn an_uncompressed_image_has_no_algorithm() {
    let s = Sandbox::new();
    let path = s.path("image");
    let names = [("a", REGULAR), ("b", REGULAR)];
    let mut bytes = image_of(&names, vec![File::regular(b"short"), File::regular(&[0; 4096])]);
    std::fs::write(&path, &bytes).unwrap();
    let algorithms = || {
        let show = s.ok(&format!("image show --json {}", path.display()));
        let show: serde_json::Value = serde_json::from_str(&show).unwrap();
        show["algorithms"].as_array().unwrap().len()
    };
    assert_eq!(algorithms(), 0);
    assert!(!s.ok(&format!("image show {}", path.display())).contains("algorithm"));
    make_compressed(&mut bytes, 3, 1);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(algorithms(), 1);
}

/// An image needs the options of its algorithms, and for its attributes those of attributes.
#[test]
fn show_lists_the_options_that_the_kernel_needs() {
    let s = Sandbox::new();
    let options = |image: &str| -> Vec<String> {
        let show: serde_json::Value =
            serde_json::from_str(&s.ok(&format!("image show --json {image}"))).unwrap();
        let all = show["kernel_options"].as_array().unwrap().iter();
        all.map(|o| format!("{} {}", o["need"].as_str().unwrap(), o["name"].as_str().unwrap())).collect()
    };
    let (source, image) = (s.path("source"), s.path("built"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), "a line of text\n".repeat(1000)).unwrap();
    let (from, to) = (source.display(), image.display().to_string());
    s.ok(&format!("image build -z deflate --rule none=zstd --kernel 6.12 {from} {to}"));
    let mount = ["mount CONFIG_EROFS_FS", "mount CONFIG_EROFS_FS_ZIP", "mount CONFIG_EROFS_FS_ZIP_DEFLATE"];
    assert_eq!(options(&to), [&mount[..], &["file CONFIG_EROFS_FS_BACKED_BY_FILE"]].concat());
    s.ok(&format!("image build -z none {from} {to}"));
    assert_eq!(options(&to), ["mount CONFIG_EROFS_FS", "file CONFIG_EROFS_FS_BACKED_BY_FILE"]);
    let text = s.ok(&format!("image show {}", crate::images::reference_image("zstd").display()));
    for row in [
        "options            CONFIG_EROFS_FS, CONFIG_EROFS_FS_ZIP",
        "for files          CONFIG_EROFS_FS_BACKED",
    ] {
        assert!(text.contains(row), "{row} is not in\n{text}");
    }
    let mut bytes = image_of(&[("f", REGULAR)], vec![File::regular(b"contents")]);
    put_xattrs(
        &mut bytes,
        1,
        &xattr_area(&[], &[xattr(6, b"selinux", b"label"), xattr(2, b"", &[2, 0, 0, 0])]),
    );
    std::fs::write(&image, &bytes).unwrap();
    let kinds = ["XATTR", "SECURITY", "POSIX_ACL"].map(|kind| format!("attributes CONFIG_EROFS_FS_{kind}"));
    assert_eq!(options(&to)[1..4], kinds);
}

#[test]
fn show_says_what_the_bytes_of_an_image_are_used_for() {
    let s = Sandbox::new();
    let (source, image) = (s.path("source"), s.path("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), "a line of text\n".repeat(20_000)).unwrap();
    let noise: Vec<u8> =
        (0..102_400u32).flat_map(|n| n.wrapping_mul(n).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    std::fs::write(source.join("noise"), &noise).unwrap();
    std::fs::write(source.join("copy"), &noise).unwrap();
    let to = image.display();
    s.ok(&format!("image build --kernel 6.12 --no-fragments --no-tail-packing {} {to}", source.display()));
    let show: serde_json::Value = serde_json::from_str(&s.ok(&format!("image show --json {to}"))).unwrap();
    let usage = &show["usage"];
    let parts = usage["parts"].as_object().unwrap();
    let sum: u64 = parts.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let len = std::fs::metadata(&image).unwrap().len();
    assert_eq!((sum, usage["total_bytes"].as_u64().unwrap()), (len, len));
    // "copy" comes first in the walk, and "noise" shares what it stores.
    let list = |name: &str| -> Vec<(String, u64)> {
        let file =
            |f: &serde_json::Value| (f["path"].as_str().unwrap().into(), f["stored_bytes"].as_u64().unwrap());
        usage[name].as_array().unwrap().iter().map(file).collect()
    };
    let (largest, worst) = (list("largest"), list("worst"));
    let saved = usage["saved_bytes"].as_u64().unwrap();
    assert_eq!(largest[0], ("/copy".to_string(), saved), "{usage}");
    assert_eq!([&worst[0].0, &worst[1].0, &worst[2].0], ["/copy", "/text", "/noise"]);
    assert_eq!((worst.len(), worst[2].1), (3, 0));
    let text = s.ok(&format!("image show {to}"));
    let usage = &text[text.find("\nUsage\n").unwrap()..];
    for row in ["saved by sharing", "total", "zstd clusters", "Files that take most", "/copy", "OF LENGTH"] {
        assert!(usage.contains(row), "{row} is not in\n{usage}");
    }
    assert!(!usage.contains('#'), "bars in a pipe");
}

#[test]
fn a_truncated_image_is_reported_though_all_files_can_be_read() {
    let s = Sandbox::new();
    let path = s.path("image");
    let mut bytes = image_of(&[("f", REGULAR)], vec![File::regular(b"contents")]);
    // The super block says that there is one more block.
    let blocks = bytes.len() as u32 / BLOCK as u32;
    bytes[1024 + 0x24..][..4].copy_from_slice(&(blocks + 1).to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let image = path.display();
    assert_eq!(s.ok(&format!("image cat {image} /f")), "contents");
    for command in ["show", "show --json"] {
        let ran = s.run(&format!("image {command} {image}"));
        ran.fails(6, "its super block says");
        assert!(ran.err.contains("cut off"), "{ran:?}");
    }
    let ran = s.run(&format!("image check {image}"));
    ran.fails(6, "1 thing is wrong");
    assert!(ran.out.contains("cut off"), "{ran:?}");
}
