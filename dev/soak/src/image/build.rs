//! Builds the image of a case, and derives its expected contents.

use super::config::{Config, Source};
use super::scan::{RequestSlot, Scan, scan};
use super::{features, tree};
use crate::case::Context;
use crate::process;
use crate::verdict::Fault;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit of mkfs.erofs, which is not tested here.
const BUILDING: Duration = Duration::from_secs(120);

/// A built image.
pub struct Built {
    /// Path of the image.
    pub image: PathBuf,
    /// Paths of further devices.
    pub devices: Vec<PathBuf>,
    /// The expected contents; `None` if no independent source knows them.
    pub expected: Option<Scan>,
    /// A short description.
    pub description: String,
}

/// Builds the image, or returns the reason why it cannot be built.
pub fn build(config: &Config, context: &Context) -> Result<Result<Built, String>, Fault> {
    let failed = |e| Fault::failed("writing an image", e);
    let (image, device) = (context.path("image"), context.path("device"));
    match &config.source {
        Source::Feature(number) => {
            let Some(feature) = features::get(*number) else { return Ok(Err("no such image".into())) };
            fs::write(&image, &feature.bytes).map_err(failed)?;
            let devices: Vec<_> =
                (0..feature.devices.len()).map(|n| context.path(&format!("device{n}"))).collect();
            for (path, bytes) in devices.iter().zip(&feature.devices) {
                fs::write(path, bytes).map_err(failed)?;
            }
            Ok(Ok(Built { image, devices, expected: None, description: feature.name.into() }))
        }
        Source::Made { tree: drawn, options, has_device, hints } => {
            let root = context.path("tree");
            tree::make(drawn, &root).map_err(|e| Fault::failed("making the tree", e))?;
            let mut options = options.clone();
            if !hints.is_empty() {
                let path = context.path("hints");
                fs::write(&path, hints.join("\n") + "\n").map_err(failed)?;
                options.push(format!("--compress-hints={}", path.display()));
            }
            let devices = if *has_device { vec![device] } else { Vec::new() };
            options.extend(devices.iter().map(|path| format!("--blobdev={}", path.display())));
            let source = scan(&root, RequestSlot(None));
            // Some options exclude each other, or do not suit the tree; then the last options are dropped one by one.
            loop {
                if let Some(why) = mkfs(context, &options, &image)? {
                    if options.pop().is_none() {
                        return Ok(Err(format!("mkfs.erofs: {why}")));
                    }
                    continue;
                }
                let has_device = options.iter().any(|option| option.starts_with("--blobdev"));
                let devices = if has_device { devices } else { Vec::new() };
                let description = format!("{} entries, {}", source.entries.len(), options.join(" "));
                let expected = Some(expected(source, &options));
                return Ok(Ok(Built { image, devices, expected, description }));
            }
        }
    }
}

/// Runs mkfs.erofs. Returns the reason if it failed.
fn mkfs(context: &Context, options: &[String], image: &std::path::Path) -> Result<Option<String>, Fault> {
    let _ = fs::remove_file(image);
    let (image, tree) = (image.display().to_string(), context.path("tree").display().to_string());
    let mut args: Vec<&str> = vec!["-d3"];
    args.extend(options.iter().map(String::as_str));
    args.extend([image.as_str(), tree.as_str()]);
    let ran = process::run(context, "mkfs.erofs", &args, BUILDING)?;
    let message = process::tail(&ran.err, 300).trim().replace('\n', "; ");
    Ok((ran.code != 0).then(|| format!("exit code {}: {message}", ran.code)))
}

/// The contents of an image that is made of this tree with these options.
fn expected(mut scan: Scan, options: &[String]) -> Scan {
    let has = |word: &str| options.iter().any(|option| option.contains(word));
    let time = options.iter().rev().find_map(|option| option.strip_prefix("-T")?.parse().ok());
    for entry in scan.entries.values_mut() {
        if has("-x-1") {
            entry.xattrs = Ok(Default::default());
        }
        if has("--all-root") {
            entry.owner = (0, 0);
        }
        if has("--force-uid") {
            entry.owner.0 = 70_000;
        }
        if let Some(time) = time {
            entry.mtime = Some((time, 0));
        } else if has("force-inode-compact") || has("--ignore-mtime") {
            entry.mtime = None;
        }
    }
    scan
}
