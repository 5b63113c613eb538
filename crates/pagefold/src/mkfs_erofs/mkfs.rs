//! `mkfs.erofs`: the arguments of `image build` that its options become.
//!
//! An image may use no more features than the options ask for: callers expect that kernels mount it which they know. So it is
//! for the oldest kernel that has all of these features, and files are stored uncompressed without `-z`.

use super::compressor::Compressor;
use super::mkfs_options::{OPTIONS, REFUSED};
use super::table::{Program, defaults};
use super::{fs_config, hints, under_fakeroot};
use crate::cli::output;
use crate::image::build::run as build;
use crate::image::build_args::BuildArgs;
use crate::image::fakeroot;
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_image::format::features::{self, KernelVersion, incompat};
use pagefold_image_build::{BLOCK_BYTES, ChunkForm, Dedupe, Pattern, Rule};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The choices of a command line.
pub struct Mkfs {
    pub build: BuildArgs,
    /// The oldest kernel with all features that were asked for.
    pub kernel: KernelVersion,
    pub compressors: Vec<Compressor>,
    pub block_bytes: Option<u32>,
    pub cluster_bytes: Option<u32>,
    pub chunk_bytes: Option<u32>,
    /// Whether entries of chunks have 8 bytes also where 4 would do.
    pub has_chunk_indexes: bool,
    /// Clusters of the packed file, bytes.
    pub packed_cluster_bytes: Option<u32>,
    pub hints: Option<PathBuf>,
    pub fs_config: Option<PathBuf>,
    /// Where the image is mounted: paths of `fs_config` begin with that.
    pub mount_point: Vec<u8>,
    /// `-T`.
    pub time: Option<i64>,
    /// Whether that is the time of creation only.
    pub is_mkfs_time: bool,
    pub is_tar: bool,
    /// Whether standard input is an archive of SOURCE, a directory.
    pub is_archived: bool,
    /// Whether all data of images that are sources is copied.
    pub is_clean: bool,
    pub is_quiet: bool,
    /// The text that is printed in place of building an image.
    pub print: Option<fn() -> Result<()>>,
}

/// The program.
pub const PROGRAM: Program<Mkfs> = Program {
    name: "mkfs.erofs",
    usage: "FILE SOURCE...",
    about: "Builds the EROFS image FILE from a directory, a tar archive (--tar=f) or an image (--clean=data), with pagefold.\n\
            FILE of several images, the lowest layer first, and of --tar=i has metadata alone: SOURCE are its devices.",
    options: OPTIONS,
    refused: REFUSED,
};

impl Mkfs {
    fn new() -> Result<Self> {
        let mut build: BuildArgs = defaults(&[OsStr::new("-"), OsStr::new("-")])?;
        build.further.in_place = true;
        // As the original, which keeps labels of the host.
        build.xattrs.xattrs_include = vec!["*".into()];
        build.sort = "path".into();
        build.dedupe = Some(Dedupe::Files);
        build.no_tail_packing = true;
        build.no_fragments = true;
        build.no_compressed_metadata = true;
        build.no_compressed_directories = true;
        Ok(Mkfs {
            build,
            kernel: features::FIRST_KERNEL,
            compressors: Vec::new(),
            block_bytes: None,
            cluster_bytes: None,
            chunk_bytes: None,
            has_chunk_indexes: false,
            packed_cluster_bytes: None,
            hints: None,
            fs_config: None,
            mount_point: Vec::new(),
            time: None,
            is_mkfs_time: false,
            is_tar: false,
            is_archived: false,
            is_clean: false,
            is_quiet: false,
            print: None,
        })
    }

    /// Makes the image one for kernels that have a feature, if that is `wanted`.
    pub fn require_if(&mut self, wanted: bool, feature: u32) -> Result<()> {
        if wanted {
            self.kernel = self.kernel.max(features::first_kernel(feature));
        }
        Ok(())
    }

    /// Completes the arguments of `image build`.
    fn finish(&mut self, operands: &[OsString]) -> Result<()> {
        self.set_sources(operands)?;
        self.set_compression()?;
        self.set_index()?;
        self.check_block()?;
        if let Some(bytes) = self.chunk_bytes {
            if !self.compressors.is_empty() {
                return Err(PROGRAM.error("--chunksize: files in chunks are not compressed; leave out -z"));
            }
            self.build.further.form.chunks = Some(ChunkForm { bytes, indexed: self.has_chunk_indexes });
        }
        if let Some(time) = self.time {
            self.build.further.build_time = Some(time);
            self.build.mtime = Some(time).filter(|_| !self.is_mkfs_time);
        }
        if let Some(path) = &self.fs_config {
            let config = fs_config::read(path, &self.mount_point);
            self.build.further.fs_config =
                Some(config.map_err(|e| PROGRAM.error(&format!("--fs-config-file: {}", e.message)))?);
        }
        self.build.kernel = Some(self.kernel.to_string());
        if self.build.xattrs.no_xattrs {
            self.build.xattrs.xattrs_include.clear();
        }
        if self.build.xattrs.strip_overlay && self.build.whiteouts.is_some() {
            return Err(PROGRAM.error(
                "--ovlfs-strip would remove the whiteouts that --aufs makes; 'pagefold image build LAYER... FILE' merges layers",
            ));
        }
        Ok(())
    }

    fn set_sources(&mut self, operands: &[OsString]) -> Result<()> {
        let (out, source) = match operands {
            [] => return Err(PROGRAM.error("no FILE: write mkfs.erofs FILE SOURCE")),
            [out] if self.is_tar => (out, OsStr::new("-")),
            [_] => return Err(PROGRAM.error("no SOURCE: write mkfs.erofs FILE SOURCE")),
            [out, source] => (out, source.as_os_str()),
            [out, sources @ ..] => return self.set_images(out, sources),
        };
        let source = if self.is_archived { OsStr::new("-") } else { source };
        self.build.paths = vec![source.into(), out.into()];
        if self.is_archived {
            return Ok(());
        }
        let is_dir = self.build.source().is_dir();
        match (self.is_tar, is_dir) {
            (true, true) => Err(PROGRAM.error("--tar: SOURCE is a directory; leave --tar out")),
            (false, false) if self.build.source().exists() && !self.is_clean => Err(PROGRAM.error(
                "SOURCE is no directory: write --tar=f for an archive, or --clean=data for an image, whose data is copied",
            )),
            _ => Ok(()),
        }
    }

    /// Sets several sources: images that are merged, whose contents stay there unless all data is copied.
    fn set_images(&mut self, out: &OsString, sources: &[OsString]) -> Result<()> {
        if self.is_tar {
            return Err(PROGRAM.error(
                "--tar: there are several sources; 'pagefold image build LAYER... FILE' merges archives",
            ));
        }
        if let Some(dir) = sources.iter().find(|source| Path::new(source).is_dir()) {
            let dir = dir.display();
            return Err(
                PROGRAM.error(&format!("of several sources each is an image, and '{dir}' is a directory"))
            );
        }
        self.build.further.is_index = !self.is_clean;
        // Merging applies the whiteouts of layers, in all forms.
        self.build.whiteouts = None;
        self.build.xattrs.strip_overlay = false;
        self.build.paths = sources.iter().chain([out]).map(PathBuf::from).collect();
        Ok(())
    }

    /// Sets what follows if contents stay in the sources.
    fn set_index(&mut self) -> Result<()> {
        if !self.build.further.is_index {
            return Ok(());
        }
        if !self.compressors.is_empty() || self.chunk_bytes.is_some() {
            let what = "contents that stay in SOURCE are not compressed; leave out -z and --chunksize, or copy them with \
                        --tar=f or --clean=data";
            return Err(PROGRAM.error(what));
        }
        if self.build.further.offset_bytes > 0 {
            return Err(PROGRAM.error("--offset: contents that stay in SOURCE follow FILE; leave it out"));
        }
        for source in self.build.sources() {
            if let Location::Url(name) = Location::from(source.clone().into_os_string()) {
                return Err(PROGRAM.error(&format!(
                    "'{name}' is on a server, and contents stay in SOURCE, so that is a file; copy it first"
                )));
            }
        }
        self.build.dedupe = Some(Dedupe::Nothing);
        self.build.no_fragments = true;
        // Blocks may be as short as those of archives, and FILE may be followed by its devices.
        self.kernel = self.kernel.max(features::FLAT_DEVICES_KERNEL);
        Ok(())
    }

    /// Fails if the blocks of the image would have another length than `-b` says. Without contents they have that of its sources,
    /// as in the original.
    fn check_block(&self) -> Result<()> {
        match self.block_bytes {
            None | Some(BLOCK_BYTES) => Ok(()),
            Some(_) if self.build.further.is_index => Ok(()),
            Some(bytes) => Err(PROGRAM.error(&format!(
                "-b: blocks of {bytes} bytes are not possible; leave it out, for 4096, which all kernels mount"
            ))),
        }
    }

    /// Sets compression, clusters and rules.
    fn set_compression(&mut self) -> Result<()> {
        let cluster_bytes = self.cluster_bytes.unwrap_or(BLOCK_BYTES);
        if self.packed_cluster_bytes.is_some_and(|bytes| bytes != cluster_bytes) {
            return Err(
                PROGRAM.error("-E: fragments have clusters of the length of -C; leave out their length")
            );
        }
        if let Some(hints) = &self.hints {
            self.build.further.rules = hints::read(hints, &self.compressors)
                .map_err(|e| PROGRAM.error(&format!("--compress-hints: {}", e.message)))?;
        }
        let compression = self.compressors.first().map(|first| first.compression);
        let rules = &mut self.build.further.rules;
        let largest = rules.iter().filter_map(|rule| rule.cluster_bytes).fold(cluster_bytes, u32::max);
        if largest > cluster_bytes {
            // All others keep their shorter clusters.
            for rule in rules.iter_mut() {
                rule.cluster_bytes = rule.cluster_bytes.or(Some(cluster_bytes));
            }
            let pattern = Pattern::regex("").map_err(CliError::failed)?;
            rules.push(Rule { pattern, compression, cluster_bytes: Some(cluster_bytes) });
        }
        for compressor in &self.compressors {
            compressor.check_window(largest).map_err(|e| PROGRAM.error(&format!("-z: {}", e.message)))?;
        }
        self.require_if(largest > BLOCK_BYTES, incompat::BIG_PCLUSTER)?;
        self.build.cluster = Some(largest.to_string());
        self.build.compression =
            Some(compression.map_or("none".into(), |compression| compression.to_string()));
        Ok(())
    }
}

/// Builds an image, as the words say.
pub fn run(words: &[OsString]) -> Result<()> {
    let mut mkfs = Mkfs::new()?;
    let operands = PROGRAM.parse(words, &mut mkfs)?;
    if let Some(print) = mkfs.print {
        return print();
    }
    mkfs.finish(&operands)?;
    output::set_quiet(mkfs.is_quiet);
    match fakeroot::program() {
        Some(_) if mkfs.build.source().is_dir() => under_fakeroot::run(&mkfs, words),
        _ => build(&mkfs.build),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Mkfs> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let mut mkfs = Mkfs::new()?;
        let operands = PROGRAM.parse(&words, &mut mkfs)?;
        mkfs.finish(&operands)?;
        Ok(mkfs)
    }

    fn kernel(line: &str) -> String {
        parsed(&format!("{line} out /")).unwrap().build.kernel.unwrap()
    }

    #[test]
    fn an_image_has_no_more_features_than_were_asked_for() {
        for (line, wanted) in [
            ("-L x", "5.4"),
            ("-zlz4", "5.4"),
            ("-zlz4hc,12 -C 65536", "5.13"),
            ("-zlzma", "5.16"),
            ("-zlz4 -E ztailpacking", "5.17"),
            ("-zlz4 -Efragments,^fragdedupe", "6.1"),
            ("-zlz4 --zfeature-bits=16", "6.1"),
            ("-zlz4:deflate", "6.6"),
            ("-zzstd", "6.10"),
            ("-zlz4 -m4096", "6.17"),
            ("--chunksize=4096", "5.15"),
            ("--xattr-prefix=user.infix.", "6.4"),
        ] {
            assert_eq!(kernel(line), wanted, "{line}");
        }
        for (line, wanted) in
            [("--tar=i out", "6.4"), ("--tar=i --tar=f out", "5.4"), ("out a.img b.img", "6.4")]
        {
            assert_eq!(parsed(line).unwrap().build.kernel.unwrap(), wanted, "{line}");
        }
    }

    #[test]
    fn times_are_those_of_files_too_unless_they_are_of_creation_only() {
        let times = |line: &str| {
            let build = parsed(&format!("{line} out /")).unwrap().build;
            (build.further.build_time, build.mtime)
        };
        assert_eq!(times("-T5"), (Some(5), Some(5)));
        assert_eq!(times("-T0 --mkfs-time"), (Some(0), None));
        assert_eq!(times("--mkfs-time -T -1 --all-time"), (Some(-1), Some(-1)));
        assert_eq!(times("-L x"), (None, None));
    }

    #[test]
    fn attributes_are_those_of_the_source_unless_they_are_left_out() {
        let xattrs = |line: &str| parsed(&format!("{line} out /")).unwrap().build.xattrs;
        assert_eq!(xattrs("-x2").xattrs_include, ["*"], "labels of the host, too");
        assert!(xattrs("-x-1").no_xattrs && xattrs("-x-1").xattrs_include.is_empty());
        assert!(xattrs("--ovlfs-strip").strip_overlay && !xattrs("--ovlfs-strip=0").strip_overlay);
        assert_eq!(xattrs("--file-contexts=fc").file_contexts, Some("fc".into()));
    }

    #[test]
    fn uuids_have_five_groups_of_digits() {
        let uuid = |text: &str| parsed(&format!("-U {text} out /")).map(|mkfs| mkfs.build.further.form.uuid);
        let wanted = *b"\xc1\xb9\xd5\xa2\xf1\x62\x11\xcf\x9e\xce\x00\x20\xaf\xc7\x6f\x16";
        assert_eq!(uuid("c1b9d5a2-f162-11cf-9ece-0020afc76f16").unwrap(), Some(wanted));
        assert_eq!(uuid("clear").unwrap(), Some([0; 16]));
        assert_ne!(uuid("random").unwrap(), uuid("random").unwrap());
        for wrong in ["c1b9d5a2", "c1b9d5a2f16211cf9ece0020afc76f16", "g1b9d5a2-f162-11cf-9ece-0020afc76f16"]
        {
            assert!(uuid(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_possible_is_refused_by_its_name() {
        for (line, says) in [
            ("--tar=headerball out", "--tar: =headerball is not possible"),
            ("--tar=i -zlz4 out", "leave out -z"),
            ("--tar=i --chunksize=4096 out", "leave out -z and --chunksize"),
            ("--tar=i --offset=4096 out", "--offset: contents"),
            ("--tar=i out oci://h/app:1", "'oci://h/app:1' is on a server"),
            ("out /proc/version oci://h/app:1", "'oci://h/app:1' is on a server"),
            ("--incremental=data out /", "--incremental is not possible"),
            ("-b512 out /", "-b: blocks of 512 bytes"),
            ("-zunknownalg out /", "-z: unknown compressor 'unknownalg'"),
            ("-Eunknown out /", "-E: unknown feature 'unknown'"),
            ("-E dot-omitted out /", "-E: dot-omitted is not possible"),
            ("-Efragments=65536 out /", "length of -C"),
            ("--tar=f --aufs --ovlfs-strip out", "merges layers"),
            ("--ovlfs-strip=2 out /", "0 or 1"),
            ("-C5000 out /", "-C: clusters of 5000 bytes"),
            ("--unxz=file --tar out", "--unxz: the decompressed archive"),
            ("--unknown out /", "unknown option --unknown"),
            ("--chunksize=5000 out /", "--chunksize: chunks of 5000 bytes"),
            ("--chunksize=4096 -zlz4 out /", "leave out -z"),
            ("out", "no SOURCE"),
            ("out a /", "each is an image, and '/' is a directory"),
            ("--tar=f out a b", "merges archives"),
            ("out /proc/version", "--clean=data"),
            ("--tar out /", "leave --tar out"),
        ] {
            let error = parsed(line).err().map(|e| e.message).unwrap_or_default();
            assert!(error.starts_with("mkfs.erofs: ") && error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn names_of_options_are_unique_and_refused_ones_are_not_taken() {
        let mut names: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
        names.extend(REFUSED.iter().map(|refused| refused.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_guide_names_all_options() {
        let guide = include_str!("../../../../docs/image/erofs-utils.md");
        let own = ["-V", "--version", "-h", "--help", super::super::mkfs_options::ARCHIVED];
        let options = OPTIONS.iter().map(|option| option.name).filter(|name| !own.contains(name));
        for name in options.chain(REFUSED.iter().map(|refused| refused.name)) {
            assert!(guide.contains(&format!("`{name}")), "{name}");
        }
    }
}
