//! `image build --layer-cache`: makes an image of each layer of images in registries, as containerd's layer content cache has
//! them (from containerd 2.4 on).
//!
//! A layer is `DIR/sha256/XX/HEX.erofs`: HEX is its diffID, the digest of its archive before compression, and XX its first
//! two digits. A file has its name only when it is complete, verified and on disk, so containerd, and other commands like this
//! one, may use the directory meanwhile.
//!
//! Several processes, the *lanes*, build one layer after the other; each starts a worker for each layer, which is confined.

use super::build::{build_image, not_built, verify_image};
use super::build_args::{BuildArgs, options};
use super::build_source::failure;
use super::build_source::layers::{RemoteLayer, decoder_share, place_one, scan_one, start_fetcher};
use super::open::{default_threads, path_failure};
use super::target::Target;
use super::worker;
use crate::cli::output;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_control::report::image::{CachedLayer, LayerCacheReport};
use pagefold_image_build::source::tar::Placing;
use pagefold_image_build::{Options, build_placed};
use pagefold_page::size::Human;
use pagefold_server::mount::media::is_in_registry;
use pagefold_sys::fork::{die_with_parent, fork};
use pagefold_sys::ready;
use pagefold_sys::respawn::{End, Started};
use pagefold_sys::signal::Termination;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Lanes at most. More would decompress more layers at once than disks and registries serve well.
const LANES_MAX: usize = 4;
/// The mode of a file of the cache, and of its directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// A layer, with its place in the cache.
struct Cached {
    diff_id: String,
    path: PathBuf,
    /// Whether the cache had it before.
    is_present: bool,
    layer: RemoteLayer,
}

/// Fills the cache in `cache`.
pub fn run(args: &BuildArgs, cache: &Path) -> Result<()> {
    check_options(args)?;
    let (mut options, _) = options(args)?;
    // Of an image without compression all data lies in whole blocks: containerd can merge such layers.
    options.tail_packing &= options.compression.is_some();
    let all = layers(args, cache)?;
    remove_abandoned(&all);
    let missing = all.iter().filter(|cached| !cached.is_present);
    let mut missing: Vec<RemoteLayer> = missing.map(|cached| cached.layer.clone()).collect();
    missing.sort_by_key(|layer| std::cmp::Reverse(layer.info.len_bytes));
    if !args.json {
        note_present(all.len() - missing.len());
    }
    if !missing.is_empty() {
        build_missing(args, &options, cache, &missing)?;
    }
    if args.json { print_json(all) } else { Ok(()) }
}

fn build_missing(args: &BuildArgs, options: &Options, cache: &Path, layers: &[RemoteLayer]) -> Result<()> {
    let (lanes, options) = divide(options, layers.len(), cache)?;
    if options.memory_bytes.is_some() {
        pagefold_sys::malloc::return_large_blocks();
    }
    pagefold_sys::beneath::raise_open_file_limit();
    run_lanes(args, &options, cache, layers, lanes)
}

/// Removes what killed commands have left beside the layers. Before there are lanes: each folder once.
fn remove_abandoned(all: &[Cached]) {
    let folders: BTreeMap<_, _> = all.iter().map(|cached| (cached.path.parent(), &cached.path)).collect();
    folders.values().for_each(|path| Target::remove_abandoned(path));
}

fn print_json(all: Vec<Cached>) -> Result<()> {
    let report = |Cached { diff_id, path, is_present, .. }| {
        let metadata = fs::metadata(&path);
        let metadata = metadata.map_err(|e| path_failure(format!("reading '{}'", path.display()), &e))?;
        let image_bytes = metadata.len();
        Ok(CachedLayer { diff_id, path, image_bytes, built: !is_present })
    };
    let layers = all.into_iter().map(report).collect::<Result<_>>()?;
    output::json(&LayerCacheReport { layers })
}

/// Refuses options that would make other images of the layers.
fn check_options(args: &BuildArgs) -> Result<()> {
    let given = [
        ("--exclude", !args.exclude.is_empty()),
        ("--whiteouts", args.whiteouts.is_some()),
        ("--all-root", args.all_root),
        ("--uid-offset", args.uid_offset != 0),
        ("--mtime", args.mtime.is_some()),
        ("--one-file-system", args.one_file_system),
        ("--hard-dereference", args.separates_links()),
        ("--hard-links", args.hard_links.is_some()),
        ("--ignore-zeros", args.ignore_zeros),
        ("--no-xattrs", args.xattrs.no_xattrs),
        ("--xattrs-include", !args.xattrs.xattrs_include.is_empty()),
        ("--xattrs-exclude", !args.xattrs.xattrs_exclude.is_empty()),
        ("--set-xattr", !args.xattrs.set_xattr.is_empty()),
        ("--file-contexts", args.xattrs.file_contexts.is_some()),
        ("--escape-overlay", args.xattrs.escape_overlay),
        ("--strip-overlay", args.xattrs.strip_overlay),
        ("--ignore-unreadable", args.ignore_unreadable.is_some()),
        ("--device", !args.device.is_empty()),
        ("--offset", args.offset.bytes()? > 0),
        ("--digest", !args.verity.digest.is_empty()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            Err(CliError::usage(format!("{option} is not for --layer-cache; leave one of them out")))
        }
        None => Ok(()),
    }
}

/// The layers of all images, each once.
fn layers(args: &BuildArgs, cache: &Path) -> Result<Vec<Cached>> {
    let locations: Vec<Location> =
        args.sources().iter().map(|source| source.clone().into_os_string().into()).collect();
    if let Some(other) = locations.iter().find(|location| !is_in_registry(location)) {
        let what = format!(
            "'{other}' is no image in a registry (oci://registry/name:tag); --layer-cache needs those"
        );
        return Err(CliError::usage(what));
    }
    let fetcher = start_fetcher(args, locations.clone(), true, args.memory_bytes()?)?;
    let fetcher = fetcher.ok_or_else(|| CliError::failed("no fetcher was started"))?;
    let mut layers = BTreeMap::new();
    for (medium, location) in locations.iter().enumerate() {
        let found = fetcher.layers(medium)?;
        let image = pinned(location, &found.manifest_digest);
        for (number, info) in found.layers.into_iter().enumerate() {
            let Some(diff_id) = info.diff_id.clone().filter(|_| !info.is_image) else {
                let what = format!(
                    "'{location}' has a layer that is an EROFS image, or no configuration with the digests of layers: \
                     containerd uses such layers without this cache; name a platform whose layers are archives"
                );
                return Err(CliError::new(Exit::Unavailable, what));
            };
            layers.entry(diff_id).or_insert(RemoteLayer { image: image.clone(), number, info });
        }
    }
    let cached = |(diff_id, layer): (String, RemoteLayer)| {
        let path = path_in(cache, &diff_id)?;
        Ok(Cached { is_present: path.is_file(), diff_id, path, layer })
    };
    layers.into_iter().map(cached).collect()
}

fn note_present(layers: usize) {
    if layers > 0 {
        output::note(&format!(
            "in the cache already: {}",
            pagefold_control::text::counted(layers as u64, "layer", "layers")
        ));
    }
}

/// The image by the digest of its manifest: a tag may move while its layers are built.
fn pinned(location: &Location, manifest_digest: &str) -> Location {
    let text = location.to_string();
    let text = text.split('@').next().unwrap_or_default();
    // A colon after the last slash begins a tag.
    let name_at = text.rfind('/').unwrap_or(0);
    let end = text[name_at..].find(':').map_or(text.len(), |colon| name_at + colon);
    Location::Url(format!("{}@{manifest_digest}", &text[..end]))
}

/// The file of a layer.
fn path_in(cache: &Path, diff_id: &str) -> Result<PathBuf> {
    let hex = diff_id
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let hex = hex.ok_or_else(|| CliError::failed(format!("'{diff_id}' is no digest of SHA-256")))?;
    Ok(cache.join("sha256").join(&hex[..2]).join(format!("{hex}.erofs")))
}

/// Divides threads and memory among as many lanes as they suffice for. Returns the options of each.
fn divide(options: &Options, layers: usize, cache: &Path) -> Result<(usize, Options)> {
    create_directory(cache)?;
    let threads = if options.threads == 0 { default_threads() } else { options.threads };
    let of = |lanes: usize| {
        let memory_bytes = options.memory_bytes.map(|bytes| bytes / lanes as u64);
        Options { threads: (threads / lanes).max(1), memory_bytes, ..options.clone() }
    };
    let most = layers.min(threads).clamp(1, LANES_MAX);
    let fitting = (2..=most).rev().find(|lanes| of(*lanes).spill(cache).is_ok()).unwrap_or(1);
    let options = of(fitting);
    options.spill(cache).map_err(failure)?;
    Ok((fitting, options))
}

fn create_directory(path: &Path) -> Result<()> {
    let created = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
    created.map_err(|e| path_failure(format!("creating '{}'", path.display()), &e))
}

/// Builds the layers, and ends as the first lane that failed.
fn run_lanes(
    args: &BuildArgs,
    options: &Options,
    cache: &Path,
    layers: &[RemoteLayer],
    lanes: usize,
) -> Result<()> {
    let signals = Termination::listen()?;
    let parent = rustix::process::getpid();
    let mut started: Vec<Started> = Vec::new();
    for lane in 0..lanes {
        let child = fork(|| {
            if die_with_parent(parent).is_err() {
                return Exit::Failed as u8;
            }
            let own = layers.iter().skip(lane).step_by(lanes);
            match own.cloned().try_for_each(|layer| build_layer(args, options, cache, layer)) {
                Ok(()) => Exit::Ok as u8,
                Err(e) => {
                    output::error(&e.message);
                    e.exit as u8
                }
            }
        });
        match child {
            Ok(child) => started.push(child),
            Err(e) => {
                started.iter().for_each(|lane| drop(lane.process.kill()));
                return Err(e.into());
            }
        }
    }
    let mut first_failure = None;
    for lane in &started {
        while let [is_signalled, false] = ready::wait([signals.as_fd(), lane.process.as_fd()], None)? {
            while let Some(number) = signals.take().filter(|_| is_signalled) {
                // One that has ended needs none.
                started.iter().for_each(|lane| drop(lane.process.send(number)));
            }
        }
        let end = lane.wait();
        if !matches!(end, End::Code(0)) {
            first_failure.get_or_insert(end);
        }
    }
    first_failure.map_or(Ok(()), worker::finish)
}

/// Builds one layer, in a worker. Returns if that succeeds, and ends this process otherwise.
fn build_layer(args: &BuildArgs, options: &Options, cache: &Path, layer: RemoteLayer) -> Result<()> {
    let path = path_in(cache, layer.info.diff_id.as_deref().unwrap_or_default())?;
    let directory = path.parent().unwrap_or(cache);
    create_directory(directory)?;
    let failed = |e: std::io::Error| path_failure(format!("writing '{}'", path.display()), &e);
    let target = Target::open_image(&path)?;
    target.file().set_permissions(Permissions::from_mode(FILE_MODE)).map_err(failed)?;
    target.write_in_child(|out| build_in(args, options, out, layer))?;
    // The name has to be on disk too, as containerd has it of those that it makes.
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    if args.json {
        return Ok(());
    }
    let len_bytes = fs::metadata(&path).map_err(failed)?.len();
    output::line(&format!("{}: {}", path.display(), Human(len_bytes)))
}

fn build_in(args: &BuildArgs, options: &Options, out: &Target, layer: RemoteLayer) -> Result<()> {
    let directory = out.path().parent().unwrap_or(Path::new("."));
    let is_placed = Placing::is_possible(options);
    let decoder_bytes = decoder_share(options.memory_bytes).filter(|_| is_placed);
    let spill = options.spill_up_to(directory, decoder_bytes).map_err(failure)?;
    let region = out.region(0);
    let (scanned, summary) = if is_placed {
        let (scanned, begun) = place_one(layer, args, out, options, &region, &spill)?;
        let built = build_placed(&scanned.tree, options, begun, &mut |_| out.go_on());
        (scanned, built.map_err(|e| not_built(e, out, args))?)
    } else {
        let mut scanned = scan_one(layer, args, out, &spill, options.memory_bytes)?;
        let summary = build_image(&mut scanned, options, out, args)?;
        (scanned, summary)
    };
    if args.verify {
        verify_image(out, &scanned.tree, &summary, args)?;
    }
    if out.poll_interrupt() {
        return Err(out.interrupted());
    }
    out.complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_manifest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for name in ["oci://h:5000/me/app:1.0", "oci://h:5000/me/app", "oci://h:5000/me/app:1@sha256:00"] {
            let pinned = pinned(&Location::Url(name.into()), &digest);
            assert_eq!(pinned, Location::Url(format!("oci://h:5000/me/app@{digest}")), "{name}");
        }
    }

    #[test]
    fn a_layer_has_the_path_of_its_digest_and_no_other_one() {
        let hex = format!("ab{}", "0c".repeat(31));
        let path = path_in(Path::new("/c"), &format!("sha256:{hex}")).unwrap();
        assert_eq!(path, PathBuf::from(format!("/c/sha256/ab/{hex}.erofs")));
        assert!(path_in(Path::new("/c"), "sha256:../../x").is_err());
    }
}
