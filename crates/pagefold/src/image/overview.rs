//! The output of `image show IMAGE`: features of the image and statistics of its files, as JSON and as text.

use super::names::{self, escaped, hex};
use super::usage;
use crate::cli::numbers;
use crate::cli::page::Page;
use pagefold_control::text::time_text;
use pagefold_image::Image;
use pagefold_image::format::features::{self, KernelVersion};
use pagefold_image::kernel_needs::{self, Need, NeededOption};
use pagefold_image::read::Algorithm;
use pagefold_image::tree_stats::{self, Amount, TreeStats};
use pagefold_page::size::Human;
use serde_json::{Map, Value, json};
use std::path::Path;

/// An image and its statistics.
pub struct Overview<'a> {
    pub image: &'a Image,
    pub stats: &'a TreeStats,
}

impl Overview<'_> {
    fn features(&self) -> (Vec<&'static str>, Vec<&'static str>, u32) {
        let superblock = self.image.superblock();
        let (needed, _) = features::split(superblock.incompat, &features::incompat::ALL);
        let (ignorable, unknown) = features::split(superblock.compat, &features::compat::ALL);
        let names = |all: Vec<features::Feature>| all.iter().map(|f| f.name).collect();
        (names(needed), names(ignorable), unknown)
    }

    /// The oldest kernel that mounts the image.
    fn kernel(&self) -> KernelVersion {
        self.image.superblock().required_kernel()
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

    fn algorithms(&self) -> Vec<Value> {
        let superblock = self.image.superblock();
        let has_records = superblock.incompat & features::incompat::COMPR_CFGS != 0;
        let all = &superblock.algorithms;
        let one = |a: Algorithm| {
            let mut object = Map::new();
            object.insert("name".into(), json!(tree_stats::algorithm_name(a)));
            match a {
                Algorithm::Lz4 => object.insert("window_bytes".into(), json!(all.lz4_window_bytes)),
                Algorithm::MicroLzma => object.insert("dictionary_bytes".into(), json!(all.lzma_dict_bytes)),
                Algorithm::Deflate => object
                    .insert("window_bytes".into(), json!(all.deflate_window_bits.map(|bits| 1u32 << bits))),
                Algorithm::Zstd => {
                    object.insert("window_bytes".into(), json!(all.zstd_window_log.map(|log| 1u64 << log)))
                }
            };
            if a == Algorithm::Lz4 {
                let bytes = superblock.max_lz4_cluster_bytes();
                object.insert("max_cluster_bytes".into(), json!(bytes));
            }
            Value::Object(object)
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
    pub fn json(&self) -> Value {
        let superblock = self.image.superblock();
        let (needed, ignorable, unknown) = self.features();
        let s = self.stats;
        let options = self.options();
        let option = |o: &NeededOption| json!({"name": o.name, "need": o.need.name()});
        let options: Vec<_> = options.iter().map(option).collect();
        let mut object = Map::new();
        names::put(&mut object, "label", superblock.volume_name());
        let fields = json!({
            "block_bytes": superblock.block_bytes(),
            "uuid": uuid(&superblock.uuid),
            "built_unix_s": built(self.image),
            "blocks": superblock.blocks,
            "media_bytes": self.image.media_bytes(),
            "inodes": superblock.inos,
            "features": {"required": needed, "ignorable": ignorable, "unknown_bits": unknown},
            "kernel": self.kernel().to_string(),
            "kernel_options": options,
            "algorithms": self.algorithms(),
            "devices": superblock.devices.len(),
            "tree": {
                "names": s.names,
                "kinds": amounts(tree_stats::KINDS.iter().map(|(_, name)| *name), &s.kinds),
                "layouts": amounts(tree_stats::LAYOUTS, &s.layouts),
                "extents": amounts(tree_stats::MAPPINGS, &s.mappings),
                "with_xattrs": s.with_xattrs,
                "with_security": s.with_security,
                "with_access_lists": s.with_access_lists,
                "content_bytes": self.content_bytes(),
                "plain_bytes": s.plain_bytes,
                "clusters": amount(&s.clusters),
                "shared": amount(&s.shared),
                "ratio": self.ratio(),
            },
            "usage": usage::json(s.usage.as_ref()),
            "errors": s.findings.errors(),
        });
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        Value::Object(object)
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
        for ((_, name), found) in tree_stats::KINDS.iter().zip(&s.kinds).filter(|(_, found)| found.count > 0)
        {
            amount_row(page, &name.replace('_', " "), found);
        }
        page.row("xattrs", &format!("{:>12} inodes", numbers::count(s.with_xattrs)));
        page.heading("Stored");
        for (name, found) in tree_stats::LAYOUTS.iter().zip(&s.layouts).filter(|(_, found)| found.count > 0) {
            amount_row(page, &name.replace('_', " "), found);
        }
        page.heading("Extents");
        for (name, found) in tree_stats::MAPPINGS.iter().zip(&s.mappings).filter(|(_, found)| found.count > 0)
        {
            amount_row(page, name, found);
        }
        amount_row(page, "clusters", &s.clusters);
        amount_row(page, "shared", &s.shared);
        let ratio = self.ratio().map_or("-".to_string(), |x| format!("{x:.2}"));
        let (all, stored) = (Human(self.content_bytes()), Human(self.stored_bytes()));
        page.row("ratio", &format!("{ratio} ({all} of contents in {stored})"));
    }
}

fn amounts<'a>(names: impl IntoIterator<Item = &'a str>, all: &[Amount]) -> Value {
    Value::Object(names.into_iter().zip(all).map(|(name, a)| (name.to_string(), amount(a))).collect())
}

fn amount(a: &Amount) -> Value {
    json!({"count": a.count, "bytes": a.bytes})
}

fn algorithm_text(algorithm: &Value) -> String {
    let mut text = algorithm["name"].as_str().unwrap_or("?").to_string();
    let fields = [
        ("window_bytes", "window"),
        ("dictionary_bytes", "dictionary"),
        ("max_cluster_bytes", "clusters up to"),
    ];
    for (field, name) in fields {
        if let Some(bytes) = algorithm[field].as_u64() {
            text.push_str(&format!(", {name} {}", Human(bytes)));
        }
    }
    text
}

/// When the image was built; `None` if it does not contain the time.
fn built(image: &Image) -> Option<i64> {
    let superblock = image.superblock();
    let at = superblock.epoch.checked_add(i64::from(superblock.build_time))?;
    (at != 0).then_some(at)
}

fn uuid(bytes: &[u8; 16]) -> String {
    let digits = hex(bytes);
    let part = |range| digits.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_string() } else { text }
}

/// Adds a row with a count and bytes.
fn amount_row(page: &mut Page, name: &str, amount: &Amount) {
    page.row(name, &format!("{:>12}  {}", numbers::count(amount.count), Human(amount.bytes)));
}
