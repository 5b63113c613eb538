//! The output of `image show IMAGE PATH`: the inode and the extents of a file, as JSON and as text.
//!
//! A file can have millions of extents, so they are not collected in memory. They are read twice: first to find errors
//! and the widths of the columns, then to print them.

use super::findings::place;
use super::ls::entry;
use super::names::{self, escaped};
use crate::cli::output::{self, Streamed};
use crate::cli::page::Page;
use crate::cli::style;
use pagefold_control::error::{CliError, Result};
use pagefold_control::report::image::{ExtentReport, FileReport, Xattr};
use pagefold_control::text::time_text;
use pagefold_image::read::{Extent, Mapping};
use pagefold_image::{ImageError, Node, tree_stats};

/// Prints a file as JSON. `failed` converts errors of the image.
pub fn print_json(node: &Node, path: &[u8], failed: impl Fn(ImageError) -> CliError) -> Result<()> {
    let xattrs = node.xattrs().map_err(&failed)?.into_iter().map(|xattr| {
        let ((name, name_hex), (value, value_hex)) = (names::json(&xattr.name), names::json(&xattr.value));
        Xattr { name, name_hex, value, value_hex }
    });
    node.extents().try_for_each(|extent| extent.map(|_| ())).map_err(&failed)?;
    let inode = node.inode();
    output::stream_json(&FileReport {
        entry: entry(path, node),
        inode_form: if inode.extended { "extended" } else { "compact" }.into(),
        at: place(inode.address),
        layout: node.kind().has_contents().then(|| tree_stats::layout_name(&inode.layout).into()),
        xattrs: xattrs.collect(),
        extents: Streamed(|| node.extents().map(|extent| extent.map(|extent| extent_json(&extent)))),
    })
}

/// Prints a file as text. `failed` converts errors of the image.
pub fn print_text(node: &Node, path: &[u8], failed: impl Fn(ImageError) -> CliError) -> Result<()> {
    const HEADING: [&str; 5] = ["START", "LENGTH", "WHERE", "STORED", "HOW"];
    let head = head_text(node, path, style::stdout_colours()).map_err(&failed)?;
    let mut widths = HEADING.map(str::len);
    for extent in node.extents() {
        let row = extent_row(&extent.map_err(&failed)?);
        widths = std::array::from_fn(|n| widths[n].max(row[n].chars().count()));
    }
    output::stream(|out| {
        out.write_all(head.as_bytes())?;
        if !node.kind().has_contents() || node.len_bytes() == 0 {
            return Ok(());
        }
        writeln!(out, "  {}", output::columns(&HEADING.map(str::to_string), &widths))?;
        for extent in node.extents() {
            let row = extent_row(&extent.map_err(std::io::Error::other)?);
            writeln!(out, "  {}", output::columns(&row, &widths))?;
        }
        Ok(())
    })
}

/// The inode as text, with the heading of the extents if there are any.
fn head_text(node: &Node, path: &[u8], colours: bool) -> Result<String, ImageError> {
    let mut page = Page::new(colours, 18);
    let inode = node.inode();
    page.heading(&escaped(path));
    page.row("what", node.kind().name());
    page.row("mode", &format!("{:06o}, owner {}, group {}", inode.mode, inode.uid, inode.gid));
    page.row("links", &inode.nlink.to_string());
    let time = time_text(inode.mtime.seconds);
    page.row("changed", &format!("{time}.{:09} UTC", inode.mtime.nanoseconds));
    if let Some(device) = inode.device {
        page.row("device", &format!("{}, {}", device.major, device.minor));
    }
    let form = if inode.extended { "64" } else { "32" };
    page.row("inode", &format!("{}, {form} bytes at {}", node.nid(), inode.address));
    if node.kind().has_contents() {
        let layout = tree_stats::layout_name(&inode.layout).replace('_', " ");
        page.row("contents", &format!("{} bytes, {layout}", inode.size));
    }
    if node.kind() == pagefold_image::read::FileKind::Symlink {
        page.row("target", &escaped(&node.read_link()?));
    }
    for xattr in node.xattrs()? {
        page.row("xattr", &format!("{} = {}", escaped(&xattr.name), escaped(&xattr.value)));
    }
    if node.kind().has_contents() && node.len_bytes() > 0 {
        page.heading("Extents");
    }
    Ok(page.into_text())
}

fn extent_json(extent: &Extent) -> ExtentReport {
    let report = ExtentReport {
        start: extent.start,
        len_bytes: extent.len_bytes,
        place: tree_stats::mapping_name(&extent.mapping).into(),
        ..ExtentReport::default()
    };
    match extent.mapping {
        Mapping::Hole => report,
        Mapping::Plain(at) => ExtentReport { at: Some(place(at)), ..report },
        Mapping::Interlaced { at, len_bytes } => {
            ExtentReport { at: Some(place(at)), stored_bytes: Some(len_bytes), ..report }
        }
        Mapping::Compressed(cluster) => ExtentReport {
            at: Some(place(cluster.at)),
            stored_bytes: Some(cluster.len_bytes),
            algorithm: Some(tree_stats::algorithm_name(cluster.algorithm).into()),
            prefix_only: Some(cluster.prefix_only),
            ..report
        },
        Mapping::Fragment { offset } => ExtentReport { packed_offset: Some(offset), ..report },
    }
}

fn extent_row(extent: &Extent) -> [String; 5] {
    let (at, stored, how) = match extent.mapping {
        Mapping::Hole => ("-".into(), 0, "hole"),
        Mapping::Plain(at) => (at.to_string(), extent.len_bytes, "plain"),
        Mapping::Interlaced { at, len_bytes } => (at.to_string(), u64::from(len_bytes), "interlaced"),
        Mapping::Compressed(cluster) => {
            let how = tree_stats::algorithm_name(cluster.algorithm);
            (cluster.at.to_string(), u64::from(cluster.len_bytes), how)
        }
        Mapping::Fragment { offset } => {
            (format!("byte {offset} of the packed file"), extent.len_bytes, "fragment")
        }
    };
    [extent.start.to_string(), extent.len_bytes.to_string(), at, stored.to_string(), how.to_string()]
}
