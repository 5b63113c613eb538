//! The sources of `image build`: a directory, a tar archive, another image, or layers.

pub mod layers;

use super::build_args::BuildArgs;
use super::fakeroot;
use super::open::{Then, confine, media_config, open_image, path_failure, reading_share};
use super::target::Target as OutFile;
use super::whole::WholeCheck;
use crate::cli::output;
use crate::cli::progress::Bar;
use layers::Registries;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_image::ReadAhead;
use pagefold_image_build::source::directory::{self, DirectoryOptions, HardLinks, OutputFile};
use pagefold_image_build::source::image::{self, ImageOptions};
use pagefold_image_build::source::spool::Spooled;
use pagefold_image_build::source::tar::{self, TarOptions};
use pagefold_image_build::source::{BEGINNING_BYTES, OnEntry, Scanned, SourceKind, spool};
use pagefold_image_build::{BuildError, Pattern, Spill, XattrFilter};
use pagefold_server::confinement::Kind;
use pagefold_server::mount::image_failure;
use pagefold_server::mount::media::{find_in_file, is_in_registry};
use pagefold_sys::ready;
use std::fs::File;
use std::io::{self, IsTerminal, Read, stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// Longest time that a signal waits while standard input has no data.
const SIGNAL_LATENCY: Duration = Duration::from_millis(100);

/// Reads a source.
pub struct SourceReader<'a> {
    pub args: &'a BuildArgs,
    pub exclude: Vec<Pattern>,
    /// The attributes that stay.
    pub xattrs: &'a XattrFilter,
    pub out: &'a OutFile,
    /// Where large trees go.
    pub spill: &'a Spill,
}

impl SourceReader<'_> {
    /// Reads the names and metadata of the source. Other files than archives are refused if an option is about archives,
    /// and likewise for directories. The second value is for an image in a registry, when all of it has been read.
    pub fn scan(self) -> Result<(Scanned, WholeCheck)> {
        let without_check = |scanned| (scanned, WholeCheck::default());
        match Location::from(self.args.source().as_os_str().to_owned()) {
            _ if self.args.sources().len() > 1 => {
                let registries = Registries::ask(self.args, self.out)?;
                layers::scan(self, registries).map(without_check)
            }
            location if is_in_registry(&location) && self.names_no_parts() => {
                let registries = Registries::ask(self.args, self.out)?;
                match registries.is_one_image() {
                    true => {
                        drop(registries);
                        self.scan_image()
                    }
                    false => layers::scan(self, registries).map(without_check),
                }
            }
            Location::Url(_) => self.scan_image(),
            Location::File(_) => self.scan_file().map(without_check),
        }
    }

    /// Whether the user named neither devices nor digests of the source, which is one image then.
    fn names_no_parts(&self) -> bool {
        self.args.device.is_empty() && self.args.verity.digest.is_empty()
    }

    /// Reads the names and metadata of a source on this machine.
    fn scan_file(self) -> Result<Scanned> {
        let (args, out, source) = (self.args, self.out, self.args.source());
        if source == Path::new("-") {
            let input = stdin();
            if input.is_terminal() {
                return Err(CliError::usage("standard input is a terminal; pipe a tar archive"));
            }
            let spooled = spooled(args, out, Interruptible { input: input.as_fd(), out }, Path::new("-"))?;
            return self.scan_archive(spooled);
        }
        let metadata = source.metadata().map_err(|e| reading(source, &e))?;
        if metadata.is_dir() {
            return self.scan_directory();
        }
        let file = open_file(source, &metadata, args)?;
        if args.offset.bytes()? > 0 {
            return self.scan_image().map(|(scanned, _)| scanned);
        }
        let kind = match kind(&file, source) {
            Ok(kind) => kind,
            Err(mut unknown) => {
                confine(Kind::Printing)?;
                unknown.message.push_str(&find_in_file(file).unwrap_or_default());
                return Err(unknown);
            }
        };
        match kind {
            SourceKind::Tar => {
                confine(Kind::Printing)?;
                self.scan_archive(file)
            }
            SourceKind::Compressed(_) => {
                let spooled = spooled(args, out, file, source)?;
                self.scan_archive(spooled)
            }
            SourceKind::Image => self.scan_image().map(|(scanned, _)| scanned),
        }
    }

    fn scan_directory(self) -> Result<Scanned> {
        let SourceReader { args, exclude, xattrs, out, spill } = self;
        check_options(args, true, false)?;
        let (source, image) = (args.source().display(), args.out().display());
        let instead = format!("tar --xattrs -C '{source}' -c . | pagefold image build - '{image}'");
        fakeroot::refuse("sees the real owners and devices only", &instead)?;
        let options = DirectoryOptions {
            exclude,
            one_file_system: args.one_file_system,
            unreadables: args.ignore_unreadable.unwrap_or_default(),
            hard_links: if args.separates_links() { HardLinks::Ignore } else { HardLinks::Keep },
            whiteouts: args.whiteouts.unwrap_or_default(),
            nested: args.xattrs.nested(),
            xattrs: xattrs.clone(),
            outputs: outputs(args, out),
            output_folder: out.folder(),
            spill: spill.clone(),
        };
        watched(args, out, |on_entry| directory::scan_watched(args.source(), &options, on_entry))
    }

    /// Reads another image, which may be on a server.
    fn scan_image(self) -> Result<(Scanned, WholeCheck)> {
        let SourceReader { args, exclude, xattrs, out, spill } = self;
        check_options(args, false, false)?;
        let source = args.source().as_os_str().to_owned().into();
        let media = media_config(&source, &args.device, &args.verity, &args.remote)?;
        let mut media = args.offset.with(media)?;
        media.remote.takes_whole = true;
        let memory_bytes = reading_share(args.memory_bytes()?);
        let (image, whole) =
            open_image(&media, memory_bytes, ReadAhead::default(), Then::Prints, out.signals())?;
        let options = ImageOptions {
            exclude,
            whiteouts: args.whiteouts.unwrap_or_default(),
            nested: args.xattrs.nested(),
            xattrs: xattrs.clone(),
            spill: spill.clone(),
        };
        let scanned = watched(args, out, |on_entry| image::scan_watched(&image, &options, on_entry))?;
        Ok((scanned, whole))
    }

    fn scan_archive(self, file: File) -> Result<Scanned> {
        let SourceReader { args, exclude, xattrs, out, spill } = self;
        check_options(args, false, true)?;
        let options = TarOptions {
            exclude,
            whiteouts: args.whiteouts.unwrap_or_default(),
            nested: args.xattrs.nested(),
            xattrs: xattrs.clone(),
            ignore_zeros: args.ignore_zeros,
            spill: spill.clone(),
            ..TarOptions::default()
        };
        scan_archive(file, args.source(), &options, args, out)
    }
}

/// Reads an archive, and prints its notes.
fn scan_archive(
    file: File,
    shown: &Path,
    options: &TarOptions,
    args: &BuildArgs,
    out: &OutFile,
) -> Result<Scanned> {
    let scanned = watched(args, out, |on_entry| tar::scan_watched(file, shown, options, on_entry))?;
    Ok(noted_scan(scanned, shown))
}

/// Prints the notes of a source.
fn noted_scan(scanned: Scanned, shown: &Path) -> Scanned {
    for note in &scanned.notes {
        output::note(&format!("'{}': {note}", shown.display()));
    }
    scanned
}

/// The file of a copy, whose note is printed.
fn noted(Spooled { file, note }: Spooled) -> File {
    note.iter().for_each(|note| output::note(note));
    file
}

/// Opens a source that is a file or a block device.
fn open_file(source: &Path, metadata: &std::fs::Metadata, args: &BuildArgs) -> Result<File> {
    let shown = source.display();
    if !metadata.is_file() && !std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()) {
        return Err(CliError::usage(format!(
            "'{shown}' is a pipe or a device; pipe it, with - as the source"
        )));
    }
    let is_same = |out: std::fs::Metadata| (out.dev(), out.ino()) == (metadata.dev(), metadata.ino());
    if args.out().metadata().is_ok_and(is_same) {
        return Err(CliError::usage(format!("'{shown}' would be replaced by its image; name another file")));
    }
    File::open(source).map_err(|e| reading(source, &e))
}

/// The file that is being written, and the one that it replaces: neither becomes part of the image if it is in the
/// directory.
fn outputs(args: &BuildArgs, out: &OutFile) -> Vec<OutputFile> {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let written = out.file().metadata().map(|metadata| OutputFile { inode: identity(metadata), name: None });
    // Other names of the file that is replaced stay, and so do its contents.
    let replaced = args.out().canonicalize().and_then(|path| {
        let folder = path.parent().unwrap_or(Path::new("/")).metadata()?;
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        Ok(OutputFile { inode: identity(path.metadata()?), name: Some((identity(folder), name)) })
    });
    written.into_iter().chain(replaced).collect()
}

/// Reads a source, shows how many inodes it has so far, and ends after a signal.
fn watched(
    args: &BuildArgs,
    out: &OutFile,
    scan: impl FnOnce(&mut OnEntry<'_>) -> std::result::Result<Scanned, BuildError>,
) -> Result<Scanned> {
    let mut bar = Bar::new(args.shows_progress());
    let scanned = scan(&mut |count| {
        bar.show_found(count);
        out.go_on()
    });
    drop(bar);
    scanned.map_err(|e| match e {
        BuildError::Interrupted => out.interrupted(),
        e => source_failure(e, args),
    })
}

/// The error for a failure of the builder or of a source, with the option that leaves out what cannot be read, if that helps.
pub fn source_failure(error: BuildError, args: &BuildArgs) -> CliError {
    let helps = match &error {
        BuildError::Source { source, .. } => {
            is_of_one_file(source) && args.source().is_dir() && args.ignore_unreadable.is_none()
        }
        _ => false,
    };
    let error = failure(error);
    match helps {
        true => {
            CliError::new(error.exit, format!("{error}; --ignore-unreadable leaves out what cannot be read"))
        }
        false => error,
    }
}

/// Whether other files may be readable all the same.
fn is_of_one_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Standard input, whose reading fails after a signal: the program at the other end of a pipe may write nothing for a
/// long time.
struct Interruptible<'a> {
    input: BorrowedFd<'a>,
    out: &'a OutFile,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.out.poll_interrupt() {
                return Err(io::Error::other("interrupted"));
            }
            if ready::wait([self.input], Some(SIGNAL_LATENCY))? == [true] {
                return Ok(rustix::io::read(self.input, buf)?);
            }
        }
    }
}

/// Copies a stream to a file beside the output, decompressed. The result has to be an archive.
fn spooled(args: &BuildArgs, out: &OutFile, input: impl Read, shown: &Path) -> Result<File> {
    let file = spool_file(out)?;
    confine(Kind::Printing)?;
    let memory_bytes = args.memory_bytes()?;
    let spooled = spool::spool(input, shown, file, memory_bytes, &mut |_| out.go_on());
    let file = noted(spooled.map_err(|e| spool_failure(e, out))?);
    let shown = shown.display();
    match kind(&file, Path::new("-")) {
        Ok(SourceKind::Tar) => Ok(file),
        Ok(SourceKind::Image) => {
            Err(CliError::usage(format!("'{shown}' has an image; write it to a file, and name that")))
        }
        _ => Err(CliError::usage(format!("'{shown}' has no tar archive in it"))),
    }
}

/// Makes a file without a name beside the output, before this process is confined.
fn spool_file(out: &OutFile) -> Result<File> {
    spool::unnamed_file(&out.temporary_folder()).map_err(failure)
}

/// The error for a failure of copying a stream to a temporary file.
fn spool_failure(error: BuildError, out: &OutFile) -> CliError {
    match error {
        _ if out.is_interrupted() => out.interrupted(),
        BuildError::Spool { source } => {
            let folder = out.temporary_folder();
            CliError::io(format!("writing a temporary file in '{}'", folder.display()), &source)
        }
        e => failure(e),
    }
}

/// Refuses options that say nothing about the source.
fn check_options(args: &BuildArgs, is_directory: bool, is_archive: bool) -> Result<()> {
    let refused = |option: &str, kind: &str| {
        let shown = args.source().display();
        Err(CliError::usage(format!("{option} is for {kind}, and not for '{shown}'; leave it out")))
    };
    match () {
        () if args.one_file_system && !is_directory => refused("--one-file-system", "directories"),
        () if args.ignore_unreadable.is_some() && !is_directory => {
            refused("--ignore-unreadable", "directories")
        }
        () if args.ignore_zeros && !is_archive => refused("--ignore-zeros", "tar archives"),
        () if (is_directory || is_archive) && args.offset.bytes()? > 0 => refused("--offset", "images"),
        () if !args.device.is_empty() && (is_directory || is_archive) => refused("--device", "images"),
        () if !args.verity.digest.is_empty() && (is_directory || is_archive) => refused("--digest", "images"),
        () => Ok(()),
    }
}

fn kind(file: &File, path: &Path) -> Result<SourceKind> {
    let mut beginning = vec![0; BEGINNING_BYTES];
    let mut len = 0;
    while len < beginning.len() {
        match file.read_at(&mut beginning[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(reading(path, &e)),
        }
    }
    SourceKind::of(&beginning[..len], path).map_err(failure)
}

fn reading(path: &Path, error: &std::io::Error) -> CliError {
    path_failure(format!("reading '{}'", path.display()), error)
}

/// The error for a failure of the builder or of a source.
pub fn failure(error: BuildError) -> CliError {
    match error {
        BuildError::Options { what } => CliError::usage(what),
        BuildError::UnknownSource { .. } => CliError::usage(error.to_string()),
        BuildError::Source { path, source } => reading(&path, &source),
        BuildError::Write { ref source, .. } | BuildError::Spool { ref source } => {
            CliError::io(error.to_string(), source)
        }
        BuildError::Changed { ref path } if is_pseudo(path) => CliError::failed(format!(
            "'{}' is on a file system of the kernel, whose files do not have the length that it states; leave it out \
             with --exclude, or with --one-file-system if it is mounted inside the source",
            path.display()
        )),
        BuildError::Changed { .. } => CliError::new(Exit::Busy, error.to_string()),
        BuildError::Archive { .. } | BuildError::CompressedSource { .. } => {
            CliError::new(Exit::Damaged, error.to_string())
        }
        BuildError::Image { ref path, ref source } => {
            image_failure(format_args!("'{}' of the image", path.display()), source)
        }
        error => CliError::failed(pagefold_image::with_causes(&error)),
    }
}

/// Types of file systems whose files the kernel makes when they are read, so that the length it states says nothing
/// (the numbers are those of statfs(2) and of the kernel's header magic.h).
const PSEUDO: [u64; 10] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
];

/// Whether a file is on a file system whose files do not have the length that the kernel states.
fn is_pseudo(path: &Path) -> bool {
    // Some architectures have a signed type of 32 bits: only these bits count.
    let kind = rustix::fs::statfs(path).map(|stat| stat.f_type as u64 & 0xffff_ffff);
    kind.is_ok_and(|kind| PSEUDO.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_kernel_is_not_said_to_have_changed() {
        let error = |path: &Path| failure(BuildError::Changed { path: path.into() });
        let pseudo = error(Path::new("/proc/self/status"));
        assert!(
            pseudo.message.starts_with("'/proc/self/status' is on a file system of the kernel"),
            "{pseudo}"
        );
        assert!(pseudo.exit == Exit::Failed && pseudo.message.contains("--exclude"), "{pseudo}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let changed = error(file.path());
        assert!(changed.exit == Exit::Busy && changed.message.contains("changed"), "{changed}");
    }
}
