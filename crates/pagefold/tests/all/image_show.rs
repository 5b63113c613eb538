//! `image show` of a file with very many extents: they are printed, and not kept.

use crate::support::Sandbox;
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;
/// Half of them data, half of them holes.
const EXTENTS: usize = 400_000;
/// Address space that the command may have. Kept, the extents would take more than that.
const ADDRESS_SPACE_KIB: u32 = 300_000;

/// An image of one file, `/f`, which consists of chunks of a block: by turns the same block, and a hole.
fn image() -> Vec<u8> {
    let mut bytes = vec![0; 3 * BLOCK];
    let superblock = &mut bytes[1024..1152];
    superblock[0..4].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    superblock[12] = 12;
    superblock[0x28..0x2c].copy_from_slice(&1u32.to_le_bytes());
    // Files in chunks.
    superblock[0x50..0x54].copy_from_slice(&4u32.to_le_bytes());
    let inode = |bytes: &mut [u8], slot: usize, format: u16, mode: u16, size: u64, place: u32| {
        let inode = &mut bytes[BLOCK + slot * 32..][..64];
        inode[0..2].copy_from_slice(&format.to_le_bytes());
        inode[4..6].copy_from_slice(&mode.to_le_bytes());
        inode[8..16].copy_from_slice(&size.to_le_bytes());
        inode[16..20].copy_from_slice(&place.to_le_bytes());
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
    // Inode 2 ends in the first block of inodes, and its map of chunks would run into the directory: so the map comes last, and the
    // inode before it.
    let nid = (bytes.len() - BLOCK) / 32;
    bytes[2 * BLOCK + 24..][..8].copy_from_slice(&(nid as u64).to_le_bytes());
    bytes.resize(bytes.len() + 64, 0);
    inode(&mut bytes, nid, 1 | 4 << 1, 0o100_644, (EXTENTS * BLOCK) as u64, 0);
    bytes.extend((0..EXTENTS).flat_map(|n| if n % 2 == 0 { 1u32 } else { u32::MAX }.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

#[test]
fn a_file_of_many_extents_is_shown_in_little_memory() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("image");
    std::fs::write(&path, image()).unwrap();
    for (more, wanted) in [("", EXTENTS), ("--json", EXTENTS)] {
        let limit = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limit, env!("CARGO_BIN_EXE_pagefold"), "image", "show", "--memory", "4M"]);
        command.arg(&path).arg("/f").args(more.split_whitespace()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more}: {said}");
        let lines = output.stdout.split(|&b| b == b'\n');
        let found = lines.filter(|line| line.ends_with(b"hole") || line.ends_with(b"plain"));
        let found = found.count() + output.stdout.windows(8).filter(|w| *w == b"\"place\":").count();
        assert_eq!(found, wanted, "{more}");
    }
}
