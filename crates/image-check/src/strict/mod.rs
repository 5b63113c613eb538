//! The strict check: rules of the format that readers do not depend on, or that this crate's reader tolerates.
//!
//! It is written from `docs/formats/erofs.md` and reads the structures of [`pagefold_image::format`] itself: inodes, attributes,
//! indexes and streams are not taken from [`pagefold_image::read`], so a fault of the reader does not hide one of the image.
//! Only the contents of directories come through the reader, since they may be compressed.
//!
//! | module | rules |
//! |---|---|
//! | `superblock`, `records`, `devices` | the superblock, the configuration records, the table of devices |
//! | `inode`, `flat`, `chunks` | an inode, and the layouts without an index |
//! | `directory`, `xattr`, `prefixes` | blocks of directories, attributes, and the long prefixes of their names |
//! | `index` | indexes: `full`, `compact` and `lclusters`, or `records`; `tail` is a last extent elsewhere |
//! | `stream` | the bytes of clusters |
//! | `usage` | features and algorithms that the image uses, against its bits |
//! | `context` | what all of them need: the image, the report of a fault |
//! | `spaces`, `numbers` | the places of all structures, to find overlaps; inode numbers |
//!
//! All of it runs in the walking thread. Each rule is reported once per file, with its first fault. Memory: one
//! cluster of at most 1 MiB, a block, and tables of `spaces` and of inode numbers that are charged to the budget.

mod chunks;
mod context;
mod devices;
mod directory;
mod extent;
mod flat;
mod index;
mod inode;
mod numbers;
mod prefixes;
mod records;
mod spaces;
mod stream;
mod superblock;
mod usage;
mod xattr;

pub(super) use context::Strict;

use inode::{Layout, RawInode};
use pagefold_image::read::FileKind;
use pagefold_image::walk::WalkSummary;
use pagefold_image::work::WorkLimit;
use pagefold_image::{Finding, Image, Nid, Result};

impl<'a> Strict<'a> {
    /// Starts a check, and judges the superblock, the records and the device table.
    pub(super) fn new(image: &'a Image, work: &'a WorkLimit, report: &'a dyn Fn(Finding)) -> Result<Self> {
        let mut strict = Strict::begin(image, work, report)?;
        superblock::check(&mut strict);
        for check in [records::check, devices::check, prefixes::check] {
            let checked = check(&mut strict);
            strict.failed(checked);
        }
        Ok(strict)
    }

    /// Judges an inode at its first name. The ordinary check reports what cannot be read.
    pub(super) fn inode(&mut self, nid: Nid, path: &[u8]) {
        self.judge(path);
        let inode = match RawInode::read(self, nid) {
            Ok(inode) => inode,
            Err(error) => return self.failed(Err(error)),
        };
        if inode.size > i64::MAX.unsigned_abs() {
            return;
        }
        inode::check(self, &inode);
        let checked = xattr::check(self, &inode);
        self.failed(checked);
        let checked = match inode.layout() {
            _ if !inode.kind.has_contents() => {
                inode.claim(self, inode.tail.offset);
                Ok(())
            }
            Layout::Plain => flat::check_plain(self, &inode),
            Layout::Inline => flat::check_inline(self, &inode),
            Layout::Chunks => chunks::check(self, &inode),
            Layout::Full | Layout::Compact => index::check(self, &inode),
            Layout::Unknown => Ok(()),
        };
        self.failed(checked);
        if inode.kind == FileKind::Directory {
            directory::check(self, nid);
        }
    }

    /// Judges an inode that the reader refuses.
    pub(super) fn unreadable_inode(&mut self, nid: Nid, path: &[u8]) {
        self.has_missed_inodes = true;
        self.inode(nid, path);
    }

    /// Judges the packed file or the metabox.
    pub(super) fn hidden_inode(&mut self, nid: Nid, path: &[u8]) {
        self.hidden_inodes += 1;
        self.inode(nid, path);
    }

    /// Judges what only the whole image shows.
    pub(super) fn finish(mut self, summary: &WalkSummary) {
        self.judge(b"");
        if !summary.ended_early {
            if !self.has_missed_inodes {
                superblock::check_inodes(&self, summary.inodes + self.hidden_inodes);
            }
            usage::check(&mut self);
        }
        if self.spaces.is_over_budget() || self.numbers.is_over_budget() {
            self.incomplete(
                "too little memory to compare the places of all data and all inode numbers: raise it with --memory",
            );
        }
    }
}
