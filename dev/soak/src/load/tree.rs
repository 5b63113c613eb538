//! A file system with real trees and large files, which are written, compared, deleted and trimmed in rounds.
//!
//! Large files consist of pages that are generated from stamps, so no copy of them is needed to compare them. The file
//! system is unmounted and mounted again before the comparison, so that no data comes from the page cache.

use crate::case::Context;
use crate::load::content::{self, Mix, PAGE};
use crate::process;
use crate::random::{Random, derive};
use crate::verdict::{Fault, FaultKind};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of a command on the file system.
const LIMIT: Duration = Duration::from_secs(120);
/// Time after which no further round begins.
const WRITING: Duration = Duration::from_secs(25);
/// A real tree, if the machine has it, with thousands of small files.
const TREE: &str = "/usr/include";
/// Bytes from which on the real tree is copied too.
const TREE_ROOM: u64 = 400 << 20;
/// The smallest device on which mkfs.xfs makes a file system.
const XFS_MIN: u64 = 320 << 20;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Draws a file system that fits on a device of this size.
    pub fn draw(random: &mut Random, size_bytes: u64) -> Self {
        let is_xfs = random.percent(40) && size_bytes >= XFS_MIN;
        if is_xfs { FileSystem::Xfs } else { FileSystem::Ext4 }
    }
}

/// The parameters of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The file system.
    pub system: FileSystem,
    /// Seed of the files.
    pub seed: u64,
    /// Most bytes in the file system at a time.
    pub bytes: u64,
    /// Contents of large files.
    pub mix: Mix,
    /// Rounds of writing and deleting.
    pub rounds: u64,
}

/// A large file.
struct Large {
    name: String,
    seed: u64,
    pages: u64,
}

impl Tree {
    /// Runs the load on a block device.
    pub fn run(&self, context: &Context, device: &str) -> Result<String, Fault> {
        let mount_point = context.path("mnt");
        let _ = std::fs::create_dir(&mount_point);
        let run = |program: &str, args: &[&str]| process::run(context, program, args, LIMIT)?.ok();
        match self.system {
            FileSystem::Ext4 => run("mkfs.ext4", &["-q", "-F", device])?,
            FileSystem::Xfs => run("mkfs.xfs", &["-q", "-f", device])?,
        };
        let point = mount_point.display().to_string();
        let mount = || run("mount", &[device, &point]).map(drop);
        mount()?;
        let (mut written, began) = (0, Instant::now());
        for round in 0..self.rounds {
            if began.elapsed() > WRITING {
                break;
            }
            let files = self.files(round);
            let tree = (Path::new(TREE).is_dir() && self.bytes >= TREE_ROOM).then(|| format!("{point}/tree"));
            if let Some(tree) = &tree {
                run("cp", &["-a", TREE, tree])?;
            }
            for file in &files {
                self.write(&mount_point, file)?;
                written += file.pages * PAGE as u64;
            }
            run("sync", &["-f", &point])?;
            run("umount", &[&point])?;
            mount()?;
            for file in &files {
                self.compare(&mount_point, file)?;
            }
            if let Some(tree) = &tree {
                run("diff", &["-rq", "--no-dereference", TREE, tree])?;
                run("rm", &["-r", tree])?;
            }
            for file in &files {
                let path = mount_point.join(&file.name);
                std::fs::remove_file(&path).map_err(|e| Fault::failed(path.display(), e))?;
            }
            run("sync", &["-f", &point])?;
            run("fstrim", &[&point])?;
        }
        run("umount", &[&point])?;
        Ok(format!("{:?} with {} MiB in at most {} rounds", self.system, written >> 20, self.rounds))
    }

    /// Draws the files of a round: as many bytes as allowed, in files of 1 to 128 MiB.
    fn files(&self, round: u64) -> Vec<Large> {
        let mut random = Random::new(derive(self.seed, round));
        let reserved = if self.bytes >= TREE_ROOM { 200 << 20 } else { 0 };
        let mut left = (self.bytes - reserved) / PAGE as u64;
        let mut files = Vec::new();
        while left > 0 {
            let pages = random.doubling(256, 32_768).min(left);
            left -= pages;
            files.push(Large { name: format!("file-{round}-{}", files.len()), seed: random.next(), pages });
        }
        files
    }

    fn write(&self, dir: &Path, file: &Large) -> Result<(), Fault> {
        let path = dir.join(&file.name);
        let failed = |e| Fault::failed(format!("writing {}", path.display()), e);
        let mut out = File::create(&path).map_err(failed)?;
        let mut random = Random::new(file.seed);
        let mut buffer = vec![0; 64 * PAGE];
        let mut left = file.pages as usize;
        while left > 0 {
            let count = left.min(64);
            for page in buffer[..count * PAGE].chunks_mut(PAGE) {
                content::make(random.next() | 1, &self.mix, page);
            }
            out.write_all(&buffer[..count * PAGE]).map_err(failed)?;
            left -= count;
        }
        Ok(())
    }

    fn compare(&self, dir: &Path, file: &Large) -> Result<(), Fault> {
        let path = dir.join(&file.name);
        let failed = |e| Fault::failed(format!("reading {}", path.display()), e);
        let mut input = File::open(&path).map_err(failed)?;
        let mut random = Random::new(file.seed);
        let (mut expected, mut read) = ([0; PAGE], [0; PAGE]);
        for page in 0..file.pages {
            content::make(random.next() | 1, &self.mix, &mut expected);
            input.read_exact(&mut read).map_err(failed)?;
            if read != expected {
                let message = format!("page {page} of {} differs from what was written", path.display());
                return Err(Fault::new(FaultKind::Contents, message));
            }
        }
        Ok(())
    }
}
