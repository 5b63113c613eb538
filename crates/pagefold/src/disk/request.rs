//! The checked arguments of `disk create`.
//!
//! All checks that need no server are here, so that a mistake on the command line is reported before anything is
//! created.

use super::backing::BackingRequest;
use super::create::{CreateArgs, DiskOptions};
use super::export_arg::ExportArg;
use super::{recompress, restore};
use crate::cli::values::{bytes, bytes_per_s};
use pagefold_control::config::{CodecConfig, DiskConfig, FuseUring, Listen, Tls};
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use pagefold_control::startup::Attachment;
use pagefold_page::{PAGE_SIZE, PageCount, size};
use pagefold_server::disk::SIZE_MAX_BYTES;
use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Largest dictionary or certificate file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The checked arguments of `disk create`.
#[derive(Debug)]
pub struct CreateRequest {
    /// The name, if the user chose one.
    pub name: Option<InstanceName>,
    /// The configuration of the server. Its backing is filled in when that was opened.
    pub config: DiskConfig,
    /// The exports to try, in this order, if that of the configuration cannot be used here.
    pub fallbacks: Vec<ExportKind>,
    /// The saved disk to restore.
    pub restore: Option<restore::SavedInput>,
    /// The backing to open.
    pub backing: Option<BackingRequest>,
    /// The mode in which the command and its server run.
    pub mode: Mode,
    /// Whether to print JSON instead of the device.
    pub json: bool,
}

/// The behaviour of `disk create` when the disk is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It ends, and the disk stays.
    Background,
    /// It waits until the disk is removed, and removes it after a signal.
    Foreground,
    /// It runs this command, and then removes the disk.
    Run(String),
}

impl Mode {
    /// How the server depends on the command.
    pub fn attachment(&self) -> Attachment {
        match self {
            Mode::Background => Attachment::Detached,
            Mode::Foreground => Attachment::Foreground,
            Mode::Run(_) => Attachment::Attached,
        }
    }
}

impl CreateRequest {
    /// Checks the arguments; reads the dictionary and the TLS files.
    pub fn from_args(args: &CreateArgs) -> Result<Self> {
        let name = args.name.as_deref().map(InstanceName::parse).transpose()?;
        let mut restored = match (&args.restore, &args.restore_if_exists) {
            (Some(path), _) => Some(restore::open(path, &args.options)?),
            (None, Some(path)) => restore::open_if_exists(path, &args.options)?,
            (None, None) => None,
        };
        if args.restore_now {
            if args.restore.is_none() && args.restore_if_exists.is_none() {
                return Err(CliError::usage("--restore-now needs --restore or --restore-if-exists"));
            }
            restored.iter_mut().for_each(|opened| opened.config.is_lazy = false);
        }
        let mode = match &args.run {
            Some(command) => Mode::Run(command.clone()),
            None if args.foreground => Mode::Foreground,
            None => Mode::Background,
        };
        let request = Self::from_options(&args.options, restored)?;
        Ok(CreateRequest { name, mode, json: args.json, ..request })
    }

    /// Checks the options of a disk that is made later, from the saved disk at `restore` if that exists.
    pub fn check(options: &DiskOptions, restore: Option<&Path>) -> Result<u64> {
        let restored = restore.map(|path| restore::open_if_exists(path, options)).transpose()?.flatten();
        Self::from_options(options, restored).map(|request| request.config.size_bytes)
    }

    fn from_options(options: &DiskOptions, restored: Option<restore::OpenSaved>) -> Result<Self> {
        let listen = listen(options)?;
        let (export, fallbacks) = exports(options.export, listen.is_some())?;
        let fuse_uring = options.fuse_uring;
        refuse_rings_without_fuse(fuse_uring, export)?;
        let (further_codecs, recompress_after) =
            recompress::further_codecs(&options.recompress_codec, &options.recompress_after)?;
        let (restore, restored, saved_bytes) = match restored {
            Some(opened) => (Some(opened.input), Some(opened.config), Some(opened.size_bytes)),
            None => (None, None, None),
        };
        let config = DiskConfig {
            size_bytes: size_of(options.size.as_deref(), saved_bytes)?,
            codec: codec(options)?,
            further_codecs,
            recompress_after,
            mem_limit_bytes: options.memory.as_deref().map(memory).transpose()?,
            export,
            uncompressed: options.uncompressed,
            fuse_uring,
            sector_size: options.sector_size,
            listen,
            backing: None,
            restore: restored,
        };
        let backing = backing(options)?;
        let mode = Mode::Background;
        Ok(CreateRequest { name: None, config, fallbacks, restore, backing, mode, json: false })
    }
}

/// The export to try first, and those to try after it.
fn exports(wanted: ExportArg, listens: bool) -> Result<(ExportKind, Vec<ExportKind>)> {
    let can = |kind: &ExportKind| !listens || kind.facts().can_listen;
    let candidates = ExportKind::ALL.into_iter().filter(|kind| wanted.0.is_none_or(|wanted| wanted == *kind));
    let mut candidates = candidates.filter(can);
    match candidates.next() {
        Some(first) => Ok((first, candidates.collect())),
        None => {
            let fit = ExportKind::ALL.into_iter().filter(can).map(|kind| kind.facts().name);
            let fit = fit.collect::<Vec<_>>().join(" or ");
            Err(CliError::usage(format!(
                "--listen needs another export; leave it out, or use --export {fit}"
            )))
        }
    }
}

/// Fails if rings are wanted and the first export to try does not use FUSE: then none of them does.
fn refuse_rings_without_fuse(wanted: FuseUring, export: ExportKind) -> Result<()> {
    if wanted != FuseUring::On || export.facts().uses_fuse {
        return Ok(());
    }
    let fit = ExportKind::ALL.into_iter().map(ExportKind::facts).filter(|facts| facts.uses_fuse);
    let fit = fit.map(|facts| facts.name).collect::<Vec<_>>().join(" or ");
    Err(CliError::usage(format!(
        "--fuse-uring on needs an export that uses FUSE; leave it out, or use --export {fit}, without --listen"
    )))
}

fn memory(text: &str) -> Result<u64> {
    let limit = bytes("--memory", text)?;
    pagefold_server::disk::check_limit(limit)
        .map_err(|reason| CliError::usage(format!("--memory: {reason}")))?;
    Ok(limit)
}

/// The size of a disk: that which the user chose, or that of the saved disk.
fn size_of(chosen: Option<&str>, saved_bytes: Option<u64>) -> Result<u64> {
    match (chosen, saved_bytes) {
        (Some(text), None) => size_bytes(text),
        (Some(text), Some(saved)) => {
            let chosen = size_bytes(text)?;
            match chosen >= saved {
                true => Ok(chosen),
                false => Err(CliError::usage(format!(
                    "--size: the saved disk has {saved} bytes ({}); choose at least as many, or leave --size out",
                    size::Human(saved)
                ))),
            }
        }
        (None, Some(saved)) if saved > SIZE_MAX_BYTES => Err(CliError::usage(format!(
            "--restore: the saved disk has more than {}",
            size::Human(SIZE_MAX_BYTES)
        ))),
        (None, Some(saved)) => {
            PageCount::covering(saved).bytes().ok_or_else(|| CliError::usage("--restore: too large"))
        }
        (None, None) => Err(CliError::usage("--size is missing, such as --size 4G")),
    }
}

fn size_bytes(text: &str) -> Result<u64> {
    let wanted = bytes("--size", text)?;
    if text.trim().bytes().all(|b| b.is_ascii_digit()) && (1..PAGE_SIZE as u64).contains(&wanted) {
        let text = text.trim();
        return Err(CliError::usage(format!(
            "--size: {text} bytes are less than a page; write {text}G or {text}M"
        )));
    }
    if wanted == 0 || wanted > SIZE_MAX_BYTES {
        let most = size::Human(SIZE_MAX_BYTES);
        return Err(CliError::usage(format!("--size: '{text}' is not between 1 page and {most}")));
    }
    PageCount::covering(wanted).bytes().ok_or_else(|| CliError::usage("--size: too large"))
}

fn backing(args: &DiskOptions) -> Result<Option<BackingRequest>> {
    let Some(path) = &args.backing else {
        return Ok(None);
    };
    let absolute = std::path::absolute(path);
    let optional = |option, text: &Option<String>| text.as_deref().map(|t| bytes(option, t)).transpose();
    let rate =
        args.writeback_rate.as_deref().map(|text| bytes_per_s("--writeback-rate", text)).transpose()?;
    Ok(Some(BackingRequest {
        path: absolute.map_err(|e| CliError::usage(format!("--backing: '{}': {e}", path.display())))?,
        size_bytes: optional("--backing-size", &args.backing_size)?,
        force: args.force_backing,
        compressed: args.compressed_writeback,
        rate_bytes_per_s: rate.unwrap_or(0),
        daily_bytes: optional("--writeback-daily", &args.writeback_daily)?.unwrap_or(0),
        delay_us: args.backing_delay,
    }))
}

fn codec(args: &DiskOptions) -> Result<CodecConfig> {
    let dictionary = match &args.dictionary {
        Some(path) => Some(read_file("--dictionary", path)?),
        None => None,
    };
    let (name, level) = recompress::name_and_level("--codec", args.codec.as_deref().unwrap_or("lz4"))?;
    if level.is_some() && args.level.is_some() {
        return Err(CliError::usage("--codec and --level both name a level; leave one of them out"));
    }
    let config =
        CodecConfig { name: name.to_string(), level: level.or(args.level), dictionary, window_bits: None };
    pagefold_server::disk::check_codec(&config)?;
    Ok(config)
}

fn listen(args: &DiskOptions) -> Result<Option<Listen>> {
    let Some(text) = &args.listen else {
        return Ok(None);
    };
    let addresses = resolve(text)?;
    let tls = match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(cert), Some(key), Some(ca)) => Some(Tls {
            cert: readable("--tls-cert", cert)?,
            key: readable("--tls-key", key)?,
            client_ca: readable("--tls-client-ca", ca)?,
        }),
        _ => None,
    };
    let reachable = addresses.iter().find(|address| !address.ip().is_loopback());
    match (reachable, addresses.first()) {
        (Some(reachable), _) if tls.is_none() => Err(CliError::usage(format!(
            "--listen: other machines can reach {reachable}, and anybody there could read and write the disk; \
             give --tls-cert, --tls-key and --tls-client-ca, or listen on 127.0.0.1"
        ))),
        (_, Some(address)) => Ok(Some(Listen { address: *address, tls })),
        (_, None) => Err(CliError::usage(format!("--listen: '{text}' has no address"))),
    }
}

/// The addresses of `HOST:PORT`.
fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
    let has_host_and_port =
        text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_host_and_port {
        return Err(CliError::usage(format!(
            "--listen: '{text}' is not a host and port, such as localhost:10809, 127.0.0.1:10809 or [::1]:10809"
        )));
    }
    let found = text.to_socket_addrs();
    found.map(Iterator::collect).map_err(|e| CliError::usage(format!("--listen: resolving '{text}': {e}")))
}

/// Checks that a file can be read, and returns its absolute path.
fn readable(option: &str, path: &Path) -> Result<PathBuf> {
    read_file(option, path)?;
    std::path::absolute(path).map_err(|e| CliError::usage(format!("{option}: '{}': {e}", path.display())))
}

fn read_file(option: &str, path: &Path) -> Result<Vec<u8>> {
    let failed = |e| CliError::usage(format!("{option}: reading '{}': {e}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut data = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut data).map_err(failed)?;
    match data.len() as u64 {
        0 => Err(CliError::usage(format!("{option}: '{}' is empty", path.display()))),
        1..=MAX_FILE_BYTES => Ok(data),
        _ => Err(CliError::usage(format!(
            "{option}: '{}' is larger than {}",
            path.display(),
            size::Human(MAX_FILE_BYTES)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskCommand;
    use clap::{FromArgMatches, Subcommand};
    use pagefold_control::error::Exit;

    fn request(line: &str) -> Result<CreateRequest> {
        let words = ["disk", "create"].into_iter().chain(line.split_whitespace());
        let matches =
            DiskCommand::augment_subcommands(clap::Command::new("disk")).try_get_matches_from(words);
        match DiskCommand::from_arg_matches(&matches.unwrap()).unwrap() {
            DiskCommand::Create(args) => CreateRequest::from_args(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sizes_round_up_to_pages() {
        assert_eq!(request("--size 1K").unwrap().config.size_bytes, 4096);
        assert_eq!(request("--size 5000").unwrap().config.size_bytes, 8192);
        assert!(request("--size 4").unwrap_err().message.contains("4G"));
        assert_eq!(request("--size 4G").unwrap().config.size_bytes, 4 << 30);
        for bad in ["0", "65T", "4X", "-1", "16384P"] {
            assert_eq!(request(&format!("--size={bad}")).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn memory_for_less_than_a_page_is_refused_with_the_smallest_limit() {
        for bad in ["1", "8191"] {
            let failure = request(&format!("--size 1G --memory {bad}")).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains("8 KiB (8192 bytes)"), "{failure}");
        }
        for (good, bytes) in [("0", 0), ("8K", 8192)] {
            let request = request(&format!("--size 1G --memory {good}")).unwrap();
            assert_eq!(request.config.mem_limit_bytes, Some(bytes));
        }
    }

    #[test]
    fn listening_beyond_loopback_needs_tls() {
        let config = request("--size 1G --listen 127.0.0.1:0").unwrap().config;
        assert_eq!(config.export, ExportKind::Nbd);
        request("--size 1G --listen [::1]:1").unwrap();
        let listen = request("--size 1G --listen localhost:7").unwrap().config.listen.unwrap();
        assert!(listen.address.ip().is_loopback() && listen.address.port() == 7);
        for bad in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "localhost", "127.0.0.1", ":1", "::1", "x:99999"] {
            assert!(request(&format!("--size 1G --listen {bad}")).is_err(), "{bad}");
        }
        assert!(request("--size 1G --export loop --listen 127.0.0.1:1").is_err());
    }

    #[test]
    fn rings_need_an_export_with_fuse() {
        for line in ["--export nbd --fuse-uring on", "--listen 127.0.0.1:0 --fuse-uring on"] {
            let failure = request(&format!("--size 1G {line}")).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{line}");
            assert!(failure.message.contains("--export loop"), "{failure}");
        }
        for line in ["--fuse-uring on", "--export nbd --fuse-uring off", "--export nbd --fuse-uring auto"] {
            request(&format!("--size 1G {line}")).unwrap();
        }
    }

    #[test]
    fn the_options_of_a_backing_are_parsed() {
        assert_eq!(request("--size 1G").unwrap().backing, None);
        let words = "--size 1G --backing /x/y --backing-size 2G --writeback-rate 50M/s --writeback-daily 20G \
                     --force-backing --compressed-writeback off";
        let wanted = BackingRequest {
            path: "/x/y".into(),
            size_bytes: Some(2 << 30),
            force: true,
            compressed: false,
            rate_bytes_per_s: 50 << 20,
            daily_bytes: 20 << 30,
            delay_us: 0,
        };
        assert_eq!(request(words).unwrap().backing, Some(wanted));
        let plain = request("--size 1G --backing y").unwrap().backing.unwrap();
        assert!(plain.path.is_absolute() && plain.compressed && !plain.force);
        for bad in ["--writeback-rate fast", "--writeback-daily x", "--backing-size 1X"] {
            let words = format!("--size 1G --backing /x/y {bad}");
            assert_eq!(request(&words).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn codecs_and_dictionaries_are_checked() {
        assert_eq!(request("--size 1G --codec zstd:5").unwrap().config.codec.level, Some(5));
        assert!(request("--size 1G --codec zstd:5 --level 3").is_err());
        assert!(request("--size 1G --codec zstd:x").is_err());
        assert!(request("--size 1G --codec nosuch").unwrap_err().message.contains("lz4"));
        assert!(request("--size 1G --codec zstd --dictionary /nonexistent").is_err());
        assert!(request("--size 1G --codec zstd --dictionary /dev/null").is_err());
    }
}
