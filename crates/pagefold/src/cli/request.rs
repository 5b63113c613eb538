//! What was typed, turned into what is meant.
//!
//! Everything about a `disk create` that can be judged before a server is
//! started is judged here, so that a wrong word is answered at once.

use super::args::{CreateArgs, DoorArg, OnOff};
use crate::failure::{Failure, Outcome};
use crate::service::backing::BackingRequest;
use crate::service::codecs;
use crate::service::config::{CodecConfig, DoorChoice, Listen, ServeConfig, Tls};
use crate::service::engine;
use pagefold_page::{PageCount, size};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Largest device: its table of slots is then 256 GiB of address space, used as pages are written.
const MAX_SIZE_BYTES: u64 = 64 << 40;
/// Largest dictionary or certificate file read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The name of a disk: short, and safe as a file name and in a terminal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskName(String);

impl DiskName {
    /// Most bytes in a name.
    pub const MAX_LEN: usize = 32;

    /// Accepts a name, or says what a name is.
    pub fn parse(text: &str) -> Outcome<Self> {
        let starts_well = !text.starts_with(['.', '-']);
        let of = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=Self::MAX_LEN).contains(&text.len()) && starts_well && text.bytes().all(of) {
            return Ok(DiskName(text.to_string()));
        }
        Err(Failure::usage(format!(
            "{text:?} is no name for a disk: use 1 to {} of A-Z a-z 0-9 . _ -, not starting with . or -",
            Self::MAX_LEN
        )))
    }

    /// The `n`-th name of a mounted image.
    pub fn numbered_mount(n: usize) -> Self {
        DiskName(format!("mount{n}"))
    }

    /// The `n`-th name that is given when none was asked for.
    pub fn numbered(n: usize) -> Self {
        DiskName(format!("disk{n}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for DiskName {
    type Error = Failure;
    fn try_from(text: String) -> Outcome<Self> {
        DiskName::parse(&text)
    }
}

impl From<DiskName> for String {
    fn from(name: DiskName) -> String {
        name.0
    }
}

/// What `disk create` was asked for.
#[derive(Debug)]
pub struct CreateRequest {
    /// The name, if one was chosen.
    pub name: Option<DiskName>,
    /// What the server is told, but for its name.
    pub config: ServeConfig,
    /// What to park pages on.
    pub backing: Option<BackingRequest>,
    /// Serve from this process.
    pub foreground: bool,
    /// No notes.
    pub quiet: bool,
}

impl CreateRequest {
    /// Judges what was typed; reads the dictionary and the TLS files.
    pub fn from_args(args: &CreateArgs) -> Outcome<Self> {
        let name = args.name.as_deref().map(DiskName::parse).transpose()?;
        let listen = listen(args)?;
        let door = match (args.door, &listen) {
            (DoorArg::Auto, None) => DoorChoice::Auto,
            (DoorArg::Auto | DoorArg::Nbd, _) => DoorChoice::Nbd,
            (DoorArg::Loop, None) => DoorChoice::Loop,
            (DoorArg::Loop, Some(_)) => {
                return Err(Failure::usage("--listen is for the NBD door; drop it, or use --door nbd"));
            }
        };
        let config = ServeConfig {
            size_bytes: size_bytes(&args.size)?,
            codec: codec(args)?,
            mem_limit_bytes: args.memory.as_deref().map(memory).transpose()?,
            door,
            uncompressed: args.uncompressed,
            listen,
            // Filled in when it has been opened.
            backing: None,
        };
        let backing = backing(args)?;
        Ok(CreateRequest { name, config, backing, foreground: args.foreground, quiet: args.quiet })
    }
}

fn bytes(option: &str, text: &str) -> Outcome<u64> {
    size::parse(text).map_err(|e| Failure::usage(format!("{option}: {e}")))
}

fn memory(text: &str) -> Outcome<u64> {
    let limit = bytes("--memory", text)?;
    engine::check_limit(limit).map_err(|why| Failure::usage(format!("--memory: {why}")))?;
    Ok(limit)
}

fn size_bytes(text: &str) -> Outcome<u64> {
    let asked = bytes("--size", text)?;
    if asked == 0 || asked > MAX_SIZE_BYTES {
        let most = size::Human(MAX_SIZE_BYTES);
        return Err(Failure::usage(format!("--size: '{text}' is not between 1 page and {most}")));
    }
    PageCount::covering(asked).bytes().ok_or_else(|| Failure::usage("--size: too large"))
}

fn backing(args: &CreateArgs) -> Outcome<Option<BackingRequest>> {
    let Some(path) = &args.backing else {
        return Ok(None);
    };
    let absolute = std::path::absolute(path);
    let optional = |option, text: &Option<String>| text.as_deref().map(|t| bytes(option, t)).transpose();
    let rate = args.park_rate.as_deref().map(|text| text.strip_suffix("/s").unwrap_or(text).to_string());
    Ok(Some(BackingRequest {
        path: absolute.map_err(|e| Failure::usage(format!("--backing: '{}': {e}", path.display())))?,
        size_bytes: optional("--backing-size", &args.backing_size)?,
        force: args.force_backing,
        compressed: args.compressed_writeback == OnOff::On,
        rate_bytes_per_s: optional("--park-rate", &rate)?.unwrap_or(0),
        daily_bytes: optional("--park-daily", &args.park_daily)?.unwrap_or(0),
        delay_us: args.backing_delay,
    }))
}

fn codec(args: &CreateArgs) -> Outcome<CodecConfig> {
    let dictionary = match &args.dictionary {
        Some(path) => Some(read_file("--dictionary", path)?),
        None => None,
    };
    let config = CodecConfig { name: args.codec.clone(), level: args.level, dictionary };
    codecs::check(&config)?;
    Ok(config)
}

fn listen(args: &CreateArgs) -> Outcome<Option<Listen>> {
    let Some(text) = &args.listen else {
        return Ok(None);
    };
    let address: SocketAddr = text.parse().map_err(|_| {
        Failure::usage(format!(
            "--listen: '{text}' is not an address and port, such as 127.0.0.1:10809 or [::1]:10809"
        ))
    })?;
    let tls = match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (Some(cert), Some(key), Some(ca)) => Some(Tls {
            cert: readable("--tls-cert", cert)?,
            key: readable("--tls-key", key)?,
            client_ca: readable("--tls-client-ca", ca)?,
        }),
        _ => None,
    };
    if tls.is_none() && !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "--listen: {address} can be reached from other machines, and anybody there could read and \
             write the disk; give --tls-cert, --tls-key and --tls-client-ca, or listen on 127.0.0.1"
        )));
    }
    Ok(Some(Listen { address, tls }))
}

/// The absolute path of a file that can be read now.
fn readable(option: &str, path: &Path) -> Outcome<PathBuf> {
    read_file(option, path)?;
    std::path::absolute(path).map_err(|e| Failure::usage(format!("{option}: '{}': {e}", path.display())))
}

fn read_file(option: &str, path: &Path) -> Outcome<Vec<u8>> {
    let failed = |e| Failure::usage(format!("{option}: reading '{}': {e}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut data = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut data).map_err(failed)?;
    match data.len() as u64 {
        0 => Err(Failure::usage(format!("{option}: '{}' is empty", path.display()))),
        1..=MAX_FILE_BYTES => Ok(data),
        _ => Err(Failure::usage(format!(
            "{option}: '{}' is larger than {}",
            path.display(),
            size::Human(MAX_FILE_BYTES)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command, DiskCommand};
    use crate::failure::Exit;
    use clap::Parser;

    fn request(line: &str) -> Outcome<CreateRequest> {
        let words = ["pagefold", "disk", "create"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Disk(disk) => match disk {
                DiskCommand::Create(args) => CreateRequest::from_args(&args),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_short_and_safe() {
        for good in ["a", "disk0", "A.b_c-9", &"x".repeat(32)] {
            assert_eq!(DiskName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a b", "é", "a\n", &"x".repeat(33)] {
            assert_eq!(DiskName::parse(bad).unwrap_err().exit, Exit::Usage, "{bad:?}");
        }
    }

    #[test]
    fn sizes_round_up_to_pages() {
        assert_eq!(request("--size 1").unwrap().config.size_bytes, 4096);
        assert_eq!(request("--size 4G").unwrap().config.size_bytes, 4 << 30);
        for bad in ["0", "65T", "4X", "-1", "16384P"] {
            assert_eq!(request(&format!("--size={bad}")).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn memory_that_holds_no_page_is_refused_with_the_least_that_does() {
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
        assert_eq!(config.door, DoorChoice::Nbd);
        request("--size 1G --listen [::1]:1").unwrap();
        for bad in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "localhost", "127.0.0.1"] {
            assert!(request(&format!("--size 1G --listen {bad}")).is_err(), "{bad}");
        }
        assert!(request("--size 1G --door loop --listen 127.0.0.1:1").is_err());
    }

    #[test]
    fn a_backing_has_sizes_and_a_rate() {
        assert_eq!(request("--size 1G").unwrap().backing, None);
        let words = "--size 1G --backing /x/y --backing-size 2G --park-rate 50M/s --park-daily 20G \
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
        for bad in ["--park-rate fast", "--park-daily x", "--backing-size 1X"] {
            let words = format!("--size 1G --backing /x/y {bad}");
            assert_eq!(request(&words).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn codec_and_files_are_checked() {
        assert!(request("--size 1G --codec nosuch").unwrap_err().message.contains("lz4"));
        assert!(request("--size 1G --codec zstd --dictionary /nonexistent").is_err());
        assert!(request("--size 1G --codec zstd --dictionary /dev/null").is_err());
    }
}
