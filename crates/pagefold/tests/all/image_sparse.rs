//! Holes of files in a mount: SEEK_DATA, SEEK_HOLE and `st_blocks`, by which programs copy sparse files.

use crate::image_mount::MountSandbox;
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// The ranges of a file that lseek(2) calls data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        assert!(start < at, "data at {start} end at {at}");
        ranges.push((start, at));
    }
    ranges
}

/// Makes a file of `len` bytes with pieces of data at some places, and returns the number of bytes in them.
fn make(path: &Path, len: u64, seed: u64) -> u64 {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    let (mut state, mut at, mut written) = (seed, 0, 0);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    loop {
        at += random(8 * MIB);
        let piece: Vec<u8> = (0..1 + random(MIB)).map(|_| 1 + random(255) as u8).collect();
        let end = at + piece.len() as u64;
        if end > len {
            return written;
        }
        file.write_all_at(&piece, at).unwrap();
        (at, written) = (end, written + piece.len() as u64);
    }
}

#[test]
fn programs_find_the_holes_of_files() {
    let Some(sandbox) = MountSandbox::new("programs_find_the_holes_of_files") else { return };
    let tree = sandbox.inner.path("sparse");
    fs::create_dir(&tree).unwrap();
    let written: Vec<_> = (0..4).map(|n| make(&tree.join(n.to_string()), 40 * MIB + n, n)).collect();
    File::create(tree.join("hole")).unwrap().set_len(5 * MIB).unwrap();
    fs::write(tree.join("short"), "short\n").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    let huge = File::create(tree.join("huge")).unwrap();
    huge.set_len(400 << 30).unwrap();
    huge.write_all_at(b"x", 200 << 30).unwrap();
    let image = sandbox.inner.path("sparse.erofs");
    sandbox.ok(&format!("image build -q {} {}", tree.display(), image.display()));
    sandbox.ok(&format!("image mount -q {} {}", image.display(), sandbox.at.display()));
    let open = |name: &str| File::open(sandbox.at.join(name)).unwrap();
    let blocks_bytes = |name: &str| fs::metadata(sandbox.at.join(name)).unwrap().blocks() * 512;

    for (n, written) in written.into_iter().enumerate() {
        let name = n.to_string();
        let whole = fs::read(tree.join(&name)).unwrap();
        let mut at = 0;
        let mut data_bytes = 0;
        for (start, end) in data(&open(&name)).into_iter().chain([(whole.len() as u64, 0)]) {
            let hole = &whole[at as usize..start as usize];
            assert!(hole.iter().all(|byte| *byte == 0), "{name}: data in the hole {at}..{start}");
            data_bytes += end.saturating_sub(start);
            at = end;
        }
        // Chunks of the image are longer than pages.
        assert!((written..written + 12 * MIB).contains(&data_bytes), "{name}: {data_bytes} of {written}");
        assert!(blocks_bytes(&name) < whole.len() as u64 && blocks_bytes(&name) > 0);
    }
    assert_eq!((data(&open("hole")), blocks_bytes("hole")), (vec![], 0));
    assert_eq!((data(&open("empty")), blocks_bytes("empty")), (vec![], 0));
    assert_eq!(data(&open("short")), [(0, 6)]);
    assert!(blocks_bytes("short") > 0);
    let found = data(&open("huge"));
    assert!(matches!(found[..], [(start, end)] if start <= 200 << 30 && end > 200 << 30), "{found:?}");
    assert!(blocks_bytes("huge") < 1 << 30);
    // Without holes this would read and write 400 GiB.
    let copy = sandbox.inner.path("copy");
    assert!(Command::new("cp").arg(sandbox.at.join("huge")).arg(&copy).status().unwrap().success());
    let (copied, mut byte) = (File::open(&copy).unwrap(), [0]);
    copied.read_exact_at(&mut byte, 200 << 30).unwrap();
    assert_eq!((copied.metadata().unwrap().len(), &byte), (400 << 30, b"x"));
    sandbox.ok(&sandbox.words("unmount", ""));
}
