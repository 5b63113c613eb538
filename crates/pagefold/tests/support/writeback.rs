//! Support of the tests of writeback: a disk with a backing, data for it, and a block device.

use super::{Nbd, Sandbox};
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub const MIB: u64 = 1 << 20;
pub const PAGE: usize = 4096;

/// Creates disk `x` with a new backing file, and returns the path of the file.
pub fn create(s: &Sandbox, words: &str) -> PathBuf {
    let file = s.path("backing");
    s.ok(&format!("disk create -q --export nbd --name x --backing {} {words}", file.display()));
    file
}

pub fn connect(s: &Sandbox) -> Nbd {
    Nbd::connect(&s.runtime().join("x/nbd.sock"))
}

/// `count` pages: the first quarter does not compress, the next half does, and in the last quarter each page repeats
/// one word.
pub fn pages(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut data = vec![0; count * PAGE];
    for (i, page) in data.chunks_exact_mut(PAGE).enumerate() {
        let random = match i * 4 / count {
            0 => PAGE,
            1 | 2 => PAGE / 4,
            _ => 0,
        };
        page[random..].fill(0xa5);
        page[..random].chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&next().to_le_bytes()));
    }
    data
}

/// Writes data from the start of the disk, in requests of 1 MiB.
pub fn write(client: &mut Nbd, data: &[u8]) {
    for (i, part) in data.chunks(MIB as usize).enumerate() {
        client.write(i as u64 * MIB, part);
    }
}

/// Expects this data from the start of the disk.
pub fn assert_reads(client: &mut Nbd, data: &[u8]) {
    let mut back = vec![0; MIB as usize];
    for (i, part) in data.chunks(MIB as usize).enumerate() {
        client.read(i as u64 * MIB, &mut back[..part.len()]);
        assert!(back[..part.len()] == *part, "MiB {i} differs");
    }
}

/// The columns of `bd_stat`: pages on the backing now, pages read back, pages written back.
pub fn bd_stat(s: &Sandbox) -> [u64; 3] {
    let text = s.ok("disk show x -a bd_stat");
    let columns: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    columns.try_into().unwrap()
}

pub fn write_back(s: &Sandbox, words: &str) -> serde_json::Value {
    serde_json::from_str(&s.ok(&format!("disk writeback x --json {words}"))).unwrap()
}

/// A loop device attached to a file, detached when dropped.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn on(file: &Path) -> Self {
        let output = std::process::Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        LoopDevice(String::from_utf8(output.stdout).unwrap().trim().to_string())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("swapoff").arg(&self.0).stderr(Stdio::null()).status();
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// The reason that devices and mounts cannot be tested here, if they cannot.
pub fn no_devices(tools: &[&str]) -> Option<String> {
    let missing = tools.iter().find(|t| !super::have(t)).map(|t| format!("needs {t}"));
    super::no_loop().map(str::to_string).or(missing)
}
