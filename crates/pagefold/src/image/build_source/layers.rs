//! Layers as the sources of `image build`: archives and images in files, and all layers of images in registries.
//!
//! Everything is opened while the process has the rights of the user: files, temporary files for what has to be
//! decompressed, and a fetcher, which reads manifests. Then the process is confined, and decodes one layer after the other.
//! The bytes of a layer in a registry are read once, in order; they are compared with the digest in the manifest, and what
//! they decompress to with that in the configuration, before anything is made of them.

use super::super::build_args::BuildArgs;
use super::super::build_notes;
use super::super::open::{confine, reading_share};
use super::super::region::Region;
use super::super::target::Target as OutFile;
use super::{
    SourceReader, failure, kind, noted, noted_scan, open_file, reading, scan_archive, spool_failure,
    spool_file, watched,
};
use crate::cli::output;
use crate::cli::progress::Bar;
use pagefold_backing::{ByteSource, FileBacking};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{Location, MediaConfig};
use pagefold_image::{Image, Options as ReadOptions, with_causes};
use pagefold_image_build::source::image::{self, ImageOptions};
use pagefold_image_build::source::spool::{self, Limits};
use pagefold_image_build::source::tar::{self, Begun, Placing, TarOptions};
use pagefold_image_build::source::{BEGINNING_BYTES, Layers, Scanned, SourceKind, Whiteouts};
use pagefold_image_build::{BuildError, Options, Spill};
use pagefold_page::size::Human;
use pagefold_server::confinement::Kind;
use pagefold_server::fetcher::{FetchedSource, Fetcher, LayerInfo, LayersInfo};
use pagefold_server::mount::image_failure;
use pagefold_server::mount::media::{Blob, WholeHash, is_in_registry};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The sources that are in registries.
pub struct Registries {
    fetcher: Option<Arc<Fetcher>>,
    /// For each source: its number among those in registries, and its layers; `None` for a file.
    images: Vec<Option<(usize, LayersInfo)>>,
}

impl Registries {
    /// Asks the registries for the layers of the sources that are there. This process has one thread, and is not confined.
    pub fn ask(args: &BuildArgs, out: &OutFile) -> Result<Self> {
        let mut locations = Vec::new();
        let mut numbers = Vec::new();
        for source in args.sources() {
            match Location::from(source.clone().into_os_string()) {
                location if is_in_registry(&location) => {
                    numbers.push(Some(locations.len()));
                    locations.push(location);
                }
                Location::Url(name) => {
                    let what = format!(
                        "'{name}' cannot be a layer: of several sources each is a file, or an image in a registry (oci://); copy \
                         it to a file first"
                    );
                    return Err(CliError::usage(what));
                }
                Location::File(_) => numbers.push(None),
            }
        }
        let fetcher = ending_on_signals(start_fetcher(args, locations, false, args.memory_bytes()?)?, out)?;
        let images = numbers.into_iter().map(|number| match (number, &fetcher) {
            (Some(number), Some(fetcher)) => Ok(Some((number, fetcher.layers(number)?))),
            _ => Ok(None),
        });
        let images = images.collect::<Result<_>>()?;
        Ok(Registries { fetcher, images })
    }

    /// Whether there is one source, which is an image that can be read in parts.
    pub fn is_one_image(&self) -> bool {
        match &self.images[..] {
            [Some((_, info))] => matches!(&info.layers[..], [LayerInfo { is_image: true, .. }]),
            _ => false,
        }
    }
}

/// Starts a fetcher for images in registries; `None` if there are none. `wants_archives`: of an index, an image whose layers
/// are archives is chosen. It takes a [share](reading_share) of the memory of the process that uses it.
pub fn start_fetcher(
    args: &BuildArgs,
    locations: Vec<Location>,
    wants_archives: bool,
    memory_bytes: Option<u64>,
) -> Result<Option<Arc<Fetcher>>> {
    let mut remote = args.remote.config_for(locations.iter(), wants_archives)?;
    remote.takes_whole = true;
    let mut locations = locations.into_iter();
    let Some(image) = locations.next() else { return Ok(None) };
    let media = MediaConfig { image, offset_bytes: 0, devices: locations.collect(), verity: None, remote };
    Fetcher::start(&media, reading_share(memory_bytes), output::note)
}

/// The fetcher, whose answers are no longer waited for after a signal that ends the writing.
fn ending_on_signals(fetcher: Option<Arc<Fetcher>>, out: &OutFile) -> Result<Option<Arc<Fetcher>>> {
    if let Some((fetcher, signals)) = fetcher.as_ref().zip(out.signals()) {
        fetcher.end_on(signals)?;
    }
    Ok(fetcher)
}

/// A layer that is open.
struct Input {
    /// Its name in messages.
    shown: PathBuf,
    form: Form,
}

enum Form {
    /// A file that is not compressed.
    Plain(File),
    /// A file that is decompressed to another one.
    Compressed { file: File, spool: File },
    /// A layer of the image of this number in a registry.
    Remote { image: usize, number: usize, info: LayerInfo, spool: File },
}

/// Reads the layers, and merges them.
pub fn scan(reader: SourceReader<'_>, registries: Registries) -> Result<Scanned> {
    let SourceReader { args, exclude, xattrs, out, spill } = reader;
    check_options(args)?;
    let Registries { fetcher, images } = registries;
    let mut inputs = Vec::new();
    for (source, image) in args.sources().iter().zip(images) {
        match image {
            Some((image, info)) => inputs.extend(remote_inputs(source, image, info, out)?),
            None => inputs.push(file_input(source, args, out)?),
        }
    }
    confine(Kind::Printing)?;
    let memory_bytes = reading_share(args.memory_bytes()?.map(|bytes| bytes / inputs.len().max(1) as u64));
    let mut layers = Layers::new(args.whiteouts, spill).map_err(failure)?;
    let (mut has_archive, mut devices) = (false, Vec::new());
    for input in inputs {
        let shown = input.shown.clone();
        let file = input.read(args, out, fetcher.as_ref(), args.memory_bytes()?)?;
        let scanned = match kind(&file, &shown)? {
            SourceKind::Tar => {
                has_archive = true;
                let options = TarOptions { ignore_zeros: args.ignore_zeros, ..layers.tar_options().clone() };
                scan_archive(file, &shown, &options, args, out)?
            }
            SourceKind::Image => {
                let image = open_image(file, &shown, memory_bytes)?;
                devices.push((shown.clone(), image.own_bytes(), image.superblock().block_bytes()));
                let options = ImageOptions { spill: spill.clone(), ..ImageOptions::default() };
                watched(args, out, |on_entry| image::scan_watched(&image, &options, on_entry))?
            }
            SourceKind::Compressed(_) => {
                let what = format!("'{}' is compressed twice; decompress it first", shown.display());
                return Err(CliError::usage(what));
            }
        };
        let merged = layers.push(scanned, &shown, &mut |_| out.go_on());
        merged.map_err(|e| if out.is_interrupted() { out.interrupted() } else { failure(e) })?;
    }
    if args.ignore_zeros && !has_archive {
        return Err(CliError::usage(
            "--ignore-zeros is for tar archives, and all layers are images; leave it out",
        ));
    }
    if args.further.is_index {
        build_notes::partial_devices(&devices);
    }
    layers.finish(&exclude, xattrs).map_err(failure)
}

/// A layer of an image in a registry.
#[derive(Debug, Clone)]
pub struct RemoteLayer {
    /// The image, by the digest of its manifest.
    pub image: Location,
    /// The number of the layer in the manifest.
    pub number: usize,
    pub info: LayerInfo,
}

/// Reads one layer, an archive, and returns its tree with whiteouts for overlay mounts of root. Confines this process. A
/// large tree goes to `spill`.
pub fn scan_one(
    layer: RemoteLayer,
    args: &BuildArgs,
    out: &OutFile,
    spill: &Spill,
    memory_bytes: Option<u64>,
) -> Result<Scanned> {
    let (shown, form, fetcher) = open_one(layer, args, out, memory_bytes)?;
    let file = Input { shown: shown.clone(), form }.read(args, out, fetcher.as_ref(), memory_bytes)?;
    if kind(&file, &shown)? != SourceKind::Tar {
        return Err(no_archive(&shown));
    }
    scan_archive(file, &shown, &overlay_options(spill), args, out)
}

/// Like [`scan_one`], for an image whose contents are [placed](Placing) while the layer comes. `region` is that of `out`.
/// Decoding takes up to [`decoder_share`] of the memory, which `spill` leaves free.
pub fn place_one<'r>(
    layer: RemoteLayer,
    args: &BuildArgs,
    out: &OutFile,
    options: &Options,
    region: &'r Region<'_>,
    spill: &Spill,
) -> Result<(Scanned, Begun<'r>)> {
    let (shown, form, fetcher) = open_one(layer, args, out, options.memory_bytes)?;
    let (Form::Remote { image, number, info, spool }, Some(fetcher)) = (form, fetcher) else {
        return Err(no_archive(&shown));
    };
    let cloned = out.file().try_clone().map_err(|e| out.failed(&e))?;
    let memory_bytes = decoder_share(options.memory_bytes);
    let limits = Limits { memory_bytes, bytes: Limits::bytes_beside(&spool).map_err(failure)? };
    let mut placing = Placing::new(options, region, cloned, spool, spill).map_err(failure)?;
    let source = Arc::new(fetcher.open_layer(image, number).map_err(|e| out.unless_interrupted(e))?);
    copy_verified(&shown, &source, &info, limits, args, out, &mut |bytes| placing.write(bytes))?;
    source.close()?;
    let (parts, begun) = placing.finish().map_err(failure)?;
    let beginning = parts.beginning(BEGINNING_BYTES).map_err(|e| reading(&shown, &e))?;
    if SourceKind::of(&beginning, &shown).map_err(failure)? != SourceKind::Tar {
        return Err(no_archive(&shown));
    }
    let tar_options = overlay_options(spill);
    let scanned = watched(args, out, |on_entry| tar::scan_parts(parts, &shown, &tar_options, on_entry))?;
    Ok((noted_scan(scanned, &shown), begun))
}

/// The memory for decoding a layer whose contents are placed, of that for building it. The tables have the rest.
pub fn decoder_share(memory_bytes: Option<u64>) -> Option<u64> {
    memory_bytes.map(|bytes| bytes / 2)
}

/// Makes the temporary file for a layer, starts its fetcher and confines this process.
fn open_one(
    layer: RemoteLayer,
    args: &BuildArgs,
    out: &OutFile,
    memory_bytes: Option<u64>,
) -> Result<(PathBuf, Form, Option<Arc<Fetcher>>)> {
    let RemoteLayer { image, number, info } = layer;
    let shown = PathBuf::from(format!("{image}, layer {}", info.digest));
    let form = Form::Remote { image: 0, number, info, spool: spool_file(out)? };
    let fetcher = ending_on_signals(start_fetcher(args, vec![image], true, memory_bytes)?, out)?;
    confine(Kind::Printing)?;
    Ok((shown, form, fetcher))
}

fn no_archive(shown: &Path) -> CliError {
    CliError::usage(format!("'{}' is no archive", shown.display()))
}

/// The options of a layer whose whiteouts become those of overlay mounts.
fn overlay_options(spill: &Spill) -> TarOptions {
    TarOptions { whiteouts: Whiteouts::Overlay, spill: spill.clone(), ..TarOptions::default() }
}

/// Refuses options that are about one source.
fn check_options(args: &BuildArgs) -> Result<()> {
    let given = [
        ("--one-file-system", args.one_file_system),
        ("--escape-overlay", args.xattrs.escape_overlay),
        ("--strip-overlay", args.xattrs.strip_overlay),
        ("--ignore-unreadable", args.ignore_unreadable.is_some()),
        ("--device", !args.device.is_empty()),
        ("--offset", args.offset.bytes()? > 0),
        ("--digest", !args.verity.digest.is_empty()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(CliError::usage(format!("{option} is not for layers; leave it out"))),
        None => Ok(()),
    }
}

/// The error of a source that cannot be a device of an image without contents.
fn no_device(shown: &dyn Display, what: &str) -> CliError {
    CliError::usage(format!(
        "'{shown}' {what}, and contents stay in sources that are images in files; make one of it first, with --tar=f and \
         -Enoinline_data"
    ))
}

/// Opens a layer that is a file.
fn file_input(source: &Path, args: &BuildArgs, out: &OutFile) -> Result<Input> {
    let shown = source.display();
    if source == Path::new("-") {
        return Err(CliError::usage("standard input is not for one of several layers; write it to a file"));
    }
    let metadata = source.metadata().map_err(|e| reading(source, &e))?;
    if metadata.is_dir() {
        return Err(CliError::usage(format!(
            "'{shown}' is a directory, and layers are archives and images; make an archive of it"
        )));
    }
    let file = open_file(source, &metadata, args)?;
    let form = match kind(&file, source)? {
        SourceKind::Compressed(_) if args.further.is_index => {
            return Err(no_device(&shown, "is compressed"));
        }
        SourceKind::Tar if args.further.is_index => return Err(no_device(&shown, "is an archive")),
        SourceKind::Compressed(_) => Form::Compressed { file, spool: spool_file(out)? },
        SourceKind::Tar | SourceKind::Image => Form::Plain(file),
    };
    Ok(Input { shown: source.into(), form })
}

/// Makes the temporary files for the layers of an image in a registry.
fn remote_inputs(source: &Path, image: usize, info: LayersInfo, out: &OutFile) -> Result<Vec<Input>> {
    let inputs = info.layers.into_iter().enumerate().map(|(number, info)| {
        let shown = format!("{}, layer {}", source.display(), info.digest).into();
        Ok(Input { shown, form: Form::Remote { image, number, info, spool: spool_file(out)? } })
    });
    inputs.collect()
}

impl Input {
    /// Returns the layer as a file that is not compressed. Decompressing takes up to `memory_bytes`.
    fn read(
        self,
        args: &BuildArgs,
        out: &OutFile,
        fetcher: Option<&Arc<Fetcher>>,
        memory_bytes: Option<u64>,
    ) -> Result<File> {
        match self.form {
            Form::Plain(file) => Ok(file),
            Form::Compressed { file, spool } => {
                let spooled = spool::spool(file, &self.shown, spool, memory_bytes, &mut |_| out.go_on());
                Ok(noted(spooled.map_err(|e| spool_failure(e, out))?))
            }
            Form::Remote { image, number, info, spool } => {
                let fetcher = fetcher.ok_or_else(|| CliError::failed("no fetcher was started"))?;
                let source = fetcher.open_layer(image, number).map_err(|e| out.unless_interrupted(e))?;
                let source = Arc::new(source);
                let bytes = Limits::bytes_beside(&spool).map_err(failure)?;
                let (limits, mut file) = (Limits { memory_bytes, bytes }, spool);
                copy_verified(&self.shown, &source, &info, limits, args, out, &mut |bytes| {
                    file.write_all(bytes).map_err(|source| BuildError::Spool { source })
                })?;
                source.close()?;
                Ok(file)
            }
        }
    }
}

/// Passes a layer of a registry to `put`, decompressed, and compares it with its digests.
fn copy_verified(
    shown: &Path,
    source: &Arc<FetchedSource>,
    info: &LayerInfo,
    limits: Limits,
    args: &BuildArgs,
    out: &OutFile,
    put: &mut dyn FnMut(&[u8]) -> Result<(), BuildError>,
) -> Result<()> {
    let mut reader =
        InOrder { source, at: 0, hash: WholeHash::default(), bar: Bar::new(args.shows_progress()) };
    // Bytes that are not compressed are hashed once.
    let is_plain = info.diff_id.as_ref() == Some(&info.digest);
    let mut contents = WholeHash::default();
    let decoded = spool::decode(&mut reader, shown, limits, &mut |bytes| {
        if !is_plain {
            contents.update(bytes);
        }
        put(bytes)?;
        if out.go_on().is_break() { Err(BuildError::Interrupted) } else { Ok(()) }
    });
    let InOrder { hash, .. } = reader;
    if out.poll_interrupt() {
        return Err(out.interrupted());
    }
    // Neither a full disk nor a server that is away is explained by the rest of the bytes.
    if let Err(e @ (BuildError::Spool { .. } | BuildError::Source { .. } | BuildError::Write { .. })) =
        decoded
    {
        return Err(spool_failure(e, out));
    }
    // Other bytes than those of the digest explain whatever else is wrong with them.
    let location = Location::Url(shown.display().to_string());
    let blob = Blob { location, source: source.clone(), is_verified: false };
    let verified = blob.verify(hash, &mut |_| out.go_on());
    match (decoded, verified) {
        (_, Err(e)) => Err(e),
        (_, Ok(None)) => Err(out.interrupted()),
        (Err(e), Ok(Some(_))) => Err(spool_failure(e, out)),
        (Ok(decoded), Ok(Some(_))) => {
            let found = contents.finish();
            let is_other = match is_plain {
                true => decoded.is_compressed,
                false => info.diff_id.as_ref().is_some_and(|wanted| *wanted != found),
            };
            if let Some(wanted) = info.diff_id.as_ref().filter(|_| is_other) {
                let what = format!(
                    "'{}': it decompresses to bytes of another digest, and the configuration of the image names {wanted}; push \
                     the image again",
                    shown.display()
                );
                return Err(CliError::new(Exit::Damaged, what));
            }
            decoded.note.iter().for_each(|note| output::note(note));
            Ok(())
        }
    }
}

/// A layer in a registry, read in order.
struct InOrder<'a> {
    source: &'a FetchedSource,
    at: u64,
    /// Of what was read.
    hash: WholeHash,
    bar: Bar,
}

impl Read for InOrder<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let total = self.source.len_bytes();
        let len = usize::try_from(total - self.at).unwrap_or(usize::MAX).min(buf.len());
        let piece = &mut buf[..len];
        self.source.read_at(self.at, piece).map_err(|e| io::Error::other(with_causes(&e)))?;
        self.hash.update(piece);
        self.at += len as u64;
        self.bar.show_bytes(self.at, total, format_args!("of {}", Human(total)));
        Ok(len)
    }
}

/// Opens a layer that is an image.
fn open_image(file: File, shown: &Path, memory_bytes: u64) -> Result<Image> {
    let failed = |e: &pagefold_image::ImageError| image_failure(format_args!("'{}'", shown.display()), e);
    let source = FileBacking::for_reading(file);
    let source =
        source.map_err(|e| CliError::failed(format!("'{}': {}", shown.display(), with_causes(&e))))?;
    let options = ReadOptions { memory_bytes, cache_full_reads: false, ..ReadOptions::default() };
    Image::open(Arc::new(source), options).map_err(|e| failed(&e))
}
