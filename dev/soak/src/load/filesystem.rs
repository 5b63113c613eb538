//! A file system with trees, which are written, compared, deleted and trimmed in rounds.
//!
//! The file system is unmounted and mounted again before the comparison, so that no data comes from the page cache.

use crate::case::Context;
use crate::load::scan::{compare, scan};
use crate::load::tree::Tree;
use crate::process;
use crate::random::Random;
use crate::verdict::{Fault, OrFault};
use std::time::{Duration, Instant};

/// Time limit of a command on the file system.
const LIMIT: Duration = Duration::from_secs(120);
/// Time after which no further round begins.
const WRITING: Duration = Duration::from_secs(25);
/// The smallest device on which mkfs.xfs makes a file system.
const XFS_MIN: u64 = 320 << 20;

/// The parameters of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// The command line that makes the file system.
    make: &'static str,
    /// The tree of each round.
    rounds: Vec<Tree>,
}

impl FileSystem {
    /// Draws a file system that fits on a device of this size, with at most so many bytes in it at a time.
    pub fn draw(random: &mut Random, size_bytes: u64, bytes: u64) -> Self {
        let is_xfs = random.percent(40) && size_bytes >= XFS_MIN;
        let rounds = (0..3).map(|_| Tree::draw_large(random, bytes)).collect();
        FileSystem { make: if is_xfs { "mkfs.xfs -q -f" } else { "mkfs.ext4 -q -F" }, rounds }
    }

    /// Runs the load on a block device.
    pub fn run(&self, context: &Context, device: &str) -> Result<String, Fault> {
        let mount_point = context.path("mnt");
        let _ = std::fs::create_dir(&mount_point);
        let (point, tree) = (mount_point.display().to_string(), mount_point.join("tree"));
        let run = |line: &str, path: &str| {
            let words: Vec<_> = line.split(' ').chain([path]).collect();
            process::run(context, words[0], &words[1..], LIMIT)?.ok().map(drop)
        };
        let mount = format!("mount {device}");
        run(self.make, device)?;
        run(&mount, &point)?;
        let (mut entries, began) = (0, Instant::now());
        for drawn in &self.rounds {
            if began.elapsed() > WRITING {
                break;
            }
            drawn.make(&tree).or_fault("making a tree")?;
            let written = scan(&tree);
            entries += written.entries.len();
            run("sync -f", &point)?;
            run("umount", &point)?;
            run(&mount, &point)?;
            compare(&tree.display().to_string(), &written, &scan(&tree))?;
            run("rm -r", &tree.display().to_string())?;
            run("sync -f", &point)?;
            run("fstrim", &point)?;
        }
        run("umount", &point)?;
        Ok(format!("{} with {entries} files in at most {} rounds", self.make, self.rounds.len()))
    }
}
