//! The output of `image show IMAGE`: features of the image and statistics of its files, as JSON and as text.

use super::names::{self, escaped, hex};
use super::usage;
use crate::cli::numbers;
use crate::cli::page::Page;
use pagefold_control::report::image::{
    AlgorithmReport, AmountReport, FeaturesReport, ImageReport, KernelOption, TreeReport,
};
use pagefold_control::text::time_text;
use pagefold_image::Image;
use pagefold_image::format::features::{self, KernelVersion};
use pagefold_image::kernel_needs::{self, Need, NeededOption};
use pagefold_image::read::Algorithm;
use pagefold_image::tree_stats::{self, Amount, TreeStats};
use pagefold_page::size::Human;
use std::collections::BTreeMap;
use std::path::Path;

/// An image and its statistics.
pub struct Overview<'a> {
    pub image: &'a Image,
    pub stats: &'a TreeStats,
    /// The byte of the file at which the image begins.
    pub offset_bytes: u64,
}

impl Overview<'_> {
    fn features(&self) -> (Vec<String>, Vec<String>, u32) {
        let superblock = self.image.superblock();
        let (needed, _) = features::split(superblock.incompat, &features::incompat::ALL);
        let (ignorable, unknown) = features::split(superblock.compat, &features::compat::ALL);
        let names = |all: Vec<features::Feature>| all.iter().map(|f| f.name.to_string()).collect();
        (names(needed), names(ignorable), unknown)
    }

    /// The oldest kernel that mounts the image.
    fn kernel(&self) -> KernelVersion {
        self.image.required_kernel()
    }

    fn options(&self) -> Vec<NeededOption> {
        kernel_needs::options(self.image.superblock(), self.stats)
    }

    /// The rows of the kernel's options: those that the image needs, and those without which something is missing.
    fn options_text(&self, page: &mut Page) {
        for (need, row) in
            [(Need::Mount, "options"), (Need::Attributes, "for attributes"), (Need::File, "for files")]
        {
            let all = self.options().into_iter().filter(|option| option.need == need);
            let mut names = all.map(|option| option.name).collect::<Vec<_>>().join(", ");
            if need == Need::File {
                names.push_str(" (Linux 6.12), or a loop device");
            }
            if !names.is_empty() {
                page.row(row, &names);
            }
        }
    }

    fn algorithms(&self) -> Vec<AlgorithmReport> {
        let superblock = self.image.superblock();
        let has_records = superblock.incompat & features::incompat::COMPR_CFGS != 0;
        let all = &superblock.algorithms;
        let one = |a: Algorithm| AlgorithmReport {
            name: tree_stats::algorithm_name(a).into(),
            window_bytes: match a {
                Algorithm::Lz4 => Some(all.lz4_window_bytes.into()),
                Algorithm::MicroLzma => None,
                Algorithm::Deflate => all.deflate_window_bits.map(|bits| 1 << bits),
                Algorithm::Zstd => all.zstd_window_log.map(|log| 1 << log),
            },
            dictionary_bytes: all.lzma_dict_bytes.filter(|_| a == Algorithm::MicroLzma).map(u64::from),
            max_cluster_bytes: (a == Algorithm::Lz4).then(|| superblock.max_lz4_cluster_bytes().into()),
        };
        // An image without configuration records does not say that it has no LZ4.
        let is_known = |a: &Algorithm| has_records || self.stats.algorithms[*a as usize].count > 0;
        all.iter().filter(is_known).map(one).collect()
    }

    /// Bytes of contents before compression divided by bytes stored for them.
    fn ratio(&self) -> Option<f64> {
        let stored = self.stored_bytes();
        (stored > 0).then(|| self.content_bytes() as f64 / stored as f64)
    }

    /// Sums saturate, because damaged files can have any length.
    fn stored_bytes(&self) -> u64 {
        self.stats.clusters.bytes.saturating_add(self.stats.plain_bytes)
    }

    fn content_bytes(&self) -> u64 {
        self.stats.kinds.iter().fold(0, |sum, kind| sum.saturating_add(kind.bytes))
    }

    /// The overview as JSON.
    pub fn json(&self) -> ImageReport {
        let superblock = self.image.superblock();
        let (required, ignorable, unknown_bits) = self.features();
        let s = self.stats;
        let (label, label_hex) = names::json(superblock.volume_name());
        let option = |o: NeededOption| KernelOption { name: o.name.into(), need: o.need.name().into() };
        ImageReport {
            label,
            label_hex,
            uuid: uuid(&superblock.uuid),
            built_unix_s: built(self.image),
            block_bytes: superblock.block_bytes(),
            blocks: superblock.blocks,
            inodes: superblock.inos,
            media_bytes: self.image.media_bytes(),
            offset_bytes: self.offset_bytes,
            devices: superblock.devices.len(),
            features: FeaturesReport { required, ignorable, unknown_bits },
            kernel: self.kernel().to_string(),
            kernel_options: self.options().into_iter().map(option).collect(),
            algorithms: self.algorithms(),
            tree: TreeReport {
                names: s.names,
                kinds: amounts(tree_stats::KINDS.map(|(_, name)| name), &s.kinds),
                layouts: amounts(tree_stats::LAYOUTS, &s.layouts),
                extents: amounts(tree_stats::MAPPINGS, &s.mappings),
                with_xattrs: s.with_xattrs,
                with_security: s.with_security,
                with_access_lists: s.with_access_lists,
                content_bytes: self.content_bytes(),
                plain_bytes: s.plain_bytes,
                clusters: amount(&s.clusters),
                shared: amount(&s.shared),
                ratio: self.ratio(),
            },
            usage: s.usage.as_ref().map(usage::json),
            errors: s.findings.errors(),
        }
    }

    /// The overview as text.
    pub fn text(&self, path: &Path, colours: bool) -> String {
        let mut page = Page::new(colours, 18);
        let superblock = self.image.superblock();
        let (needed, ignorable, unknown) = self.features();
        page.heading(&escaped(super::open::path_bytes(path)));
        page.row("label", &or_dash(escaped(superblock.volume_name())));
        page.row("uuid", &uuid(&superblock.uuid));
        page.row("built", &built(self.image).map_or("-".into(), |s| format!("{} UTC", time_text(s))));
        if self.offset_bytes > 0 {
            page.row("begins at", &format!("byte {} of the file", self.offset_bytes));
        }
        page.row("size", &Human(self.image.media_bytes()).to_string());
        page.row("block", &Human(u64::from(superblock.block_bytes())).to_string());
        page.row("features", &or_dash(needed.join(", ")));
        let unknown = if unknown == 0 { String::new() } else { format!(", unknown bits {unknown:#x}") };
        page.row("ignorable", &or_dash(format!("{}{unknown}", ignorable.join(", "))));
        page.row("kernel", &format!("Linux {} or later mounts it", self.kernel()));
        self.options_text(&mut page);
        for algorithm in self.algorithms() {
            page.row("algorithm", &algorithm_text(&algorithm));
        }
        if !superblock.devices.is_empty() {
            page.row("devices", &superblock.devices.len().to_string());
        }
        self.tree_text(&mut page);
        usage::add_text(&mut page, self.stats.usage.as_ref(), numbers::are_for_people());
        page.into_text()
    }

    fn tree_text(&self, page: &mut Page) {
        let s = self.stats;
        page.heading("Tree");
        page.row("names", &numbers::count(s.names));
        amount_rows(page, tree_stats::KINDS.map(|(_, name)| name), &s.kinds);
        page.row("xattrs", &format!("{:>12} inodes", numbers::count(s.with_xattrs)));
        page.heading("Stored");
        amount_rows(page, tree_stats::LAYOUTS, &s.layouts);
        page.heading("Extents");
        amount_rows(page, tree_stats::MAPPINGS, &s.mappings);
        amount_row(page, "clusters", &s.clusters);
        amount_row(page, "shared", &s.shared);
        let ratio = self.ratio().map_or("-".to_string(), |x| format!("{x:.2}"));
        let (all, stored) = (Human(self.content_bytes()), Human(self.stored_bytes()));
        page.row("ratio", &format!("{ratio} ({all} of contents in {stored})"));
    }
}

fn amounts<'a>(names: impl IntoIterator<Item = &'a str>, all: &[Amount]) -> BTreeMap<String, AmountReport> {
    names.into_iter().zip(all).map(|(name, a)| (name.to_string(), amount(a))).collect()
}

fn amount(a: &Amount) -> AmountReport {
    AmountReport { count: a.count, bytes: a.bytes }
}

fn algorithm_text(algorithm: &AlgorithmReport) -> String {
    let mut text = algorithm.name.clone();
    for (name, bytes) in [
        ("window", algorithm.window_bytes),
        ("dictionary", algorithm.dictionary_bytes),
        ("clusters up to", algorithm.max_cluster_bytes),
    ] {
        text.extend(bytes.map(|bytes| format!(", {name} {}", Human(bytes))));
    }
    text
}

/// When the image was built; `None` if it does not contain the time.
fn built(image: &Image) -> Option<i64> {
    let superblock = image.superblock();
    let at = superblock.epoch.checked_add(i64::from(superblock.build_time))?;
    (at != 0).then_some(at)
}

/// Formats a UUID.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let digits = hex(bytes);
    let part = |range| digits.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_string() } else { text }
}

/// Adds a row for each name of which there is something.
fn amount_rows<'a>(page: &mut Page, names: impl IntoIterator<Item = &'a str>, all: &[Amount]) {
    for (name, found) in names.into_iter().zip(all).filter(|(_, found)| found.count > 0) {
        amount_row(page, &name.replace('_', " "), found);
    }
}

/// Adds a row with a count and bytes.
fn amount_row(page: &mut Page, name: &str, amount: &Amount) {
    page.row(name, &format!("{:>12}  {}", numbers::count(amount.count), Human(amount.bytes)));
}
