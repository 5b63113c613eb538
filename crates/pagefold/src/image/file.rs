//! The output of `image show IMAGE PATH`: the inode and the extents of a file, as JSON and as text.
//!
//! A file can have millions of extents, so they are not collected in memory. They are read twice: first to find errors
//! and the widths of the columns, then to print them.

use super::ls::inode_fields;
use super::names::{self, escaped};
use crate::cli::page::Page;
use crate::cli::{output, style};
use pagefold_control::error::Result;
use pagefold_control::text::time_text;
use pagefold_image::read::{Extent, Mapping};
use pagefold_image::{Address, ImageError, Node, Space, tree_stats};
use serde::ser::{Error, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Prints a file as JSON. `failed` converts errors of the image.
pub fn print_json(
    node: &Node,
    path: &[u8],
    failed: impl Fn(ImageError) -> pagefold_control::error::CliError,
) -> Result<()> {
    let head = head_json(node, path).map_err(&failed)?;
    node.extents().try_for_each(|extent| extent.map(|_| ())).map_err(&failed)?;
    output::stream_json(&FileJson { head, node })
}

/// Prints a file as text. `failed` converts errors of the image.
pub fn print_text(
    node: &Node,
    path: &[u8],
    failed: impl Fn(ImageError) -> pagefold_control::error::CliError,
) -> Result<()> {
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

/// The JSON of a file. Its extents are read while they are written.
struct FileJson<'a> {
    head: Map<String, Value>,
    node: &'a Node,
}

impl Serialize for FileJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.head {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("extents", &ExtentsJson(self.node))?;
        map.end()
    }
}

struct ExtentsJson<'a>(&'a Node);

impl Serialize for ExtentsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for extent in self.0.extents() {
            list.serialize_element(&extent_json(&extent.map_err(S::Error::custom)?))?;
        }
        list.end()
    }
}

/// The JSON fields of a file except its extents.
fn head_json(node: &Node, path: &[u8]) -> Result<Map<String, Value>, ImageError> {
    let mut object = Map::new();
    names::put(&mut object, "path", path);
    inode_fields(&mut object, node);
    let inode = node.inode();
    object.insert("inode_form".into(), json!(if inode.extended { "extended" } else { "compact" }));
    object.insert("at".into(), address_json(inode.address));
    if node.kind().has_contents() {
        object.insert("layout".into(), json!(tree_stats::layout_name(&inode.layout)));
    }
    let xattrs = node.xattrs()?.into_iter().map(|xattr| {
        let mut one = Map::new();
        names::put(&mut one, "name", &xattr.name);
        names::put(&mut one, "value", &xattr.value);
        Value::Object(one)
    });
    object.insert("xattrs".into(), xattrs.collect());
    Ok(object)
}

/// The same as text, with the heading of the extents if there are any.
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

fn address_json(at: Address) -> Value {
    match at.space {
        Space::Device(device) => json!({"device": device, "offset_bytes": at.offset}),
        Space::Metabox => json!({"metabox": true, "offset_bytes": at.offset}),
    }
}

fn extent_json(extent: &Extent) -> Value {
    let mapping = tree_stats::mapping_name(&extent.mapping);
    let mut object = json!({"start": extent.start, "len_bytes": extent.len_bytes, "place": mapping});
    match extent.mapping {
        Mapping::Hole => {}
        Mapping::Plain(at) => object["at"] = address_json(at),
        Mapping::Interlaced { at, len_bytes } => {
            object["at"] = address_json(at);
            object["stored_bytes"] = json!(len_bytes);
        }
        Mapping::Compressed(cluster) => {
            object["at"] = address_json(cluster.at);
            object["stored_bytes"] = json!(cluster.len_bytes);
            object["algorithm"] = json!(tree_stats::algorithm_name(cluster.algorithm));
            object["prefix_only"] = json!(cluster.prefix_only);
        }
        Mapping::Fragment { offset } => object["packed_offset"] = json!(offset),
    }
    object
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
