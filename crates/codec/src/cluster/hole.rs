//! A planted hole, for tests of confinement: a decoder that does what the bytes of a cluster wish, as one with a fault would
//! that an attacker knows. Programs that people get do not have it.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// The beginning of a wish, which ends with a newline, backwards: an image of this program contains no wish.
const MARK_BACKWARDS: &[u8] = b" :ELOH DETNALP";

/// Carries out the wish in the compressed bytes `src`, if there is one, and puts the result into `dst` as the decoded bytes:
/// "granted", or "refused" and the number of the error.
pub fn grant(src: &[u8], dst: &mut [u8]) -> bool {
    let len = MARK_BACKWARDS.len();
    let begins = |bytes: &[u8]| bytes.iter().rev().eq(MARK_BACKWARDS);
    let Some(at) = src.windows(len).position(begins) else { return false };
    let wish = &src[at + len..];
    let end = wish.iter().position(|byte| *byte == b'\n').unwrap_or(wish.len());
    let wish = String::from_utf8_lossy(&wish[..end]).into_owned();
    let result = match carry_out(&wish) {
        Ok(()) => "granted\n".to_string(),
        Err(e) => format!("refused {}\n", e.raw_os_error().unwrap_or(0)),
    };
    dst.fill(0);
    dst.iter_mut().zip(result.as_bytes()).for_each(|(to, from)| *to = *from);
    true
}

fn carry_out(wish: &str) -> io::Result<()> {
    let (verb, object) = wish.split_once(' ').unwrap_or((wish, ""));
    let pid = || {
        let pid = object.parse().ok().and_then(rustix::process::Pid::from_raw);
        pid.ok_or(io::Error::from(io::ErrorKind::InvalidInput))
    };
    match verb {
        "read" => File::open(object).map(drop),
        "write" => OpenOptions::new().write(true).create(true).truncate(false).open(object).map(drop),
        "chmod" => chmod(object, 0o777),
        // Files that are open, such as the image; the one that is being extracted is empty yet.
        "touch" => {
            let is_full =
                |path: &String| std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
            let open = (0..64).map(|number| format!("{object}{number}")).filter(is_full);
            let changed = open.map(|path| chmod(&path, 0o600)).reduce(io::Result::or);
            changed.unwrap_or(Err(io::ErrorKind::NotFound.into()))
        }
        "setid" => {
            File::create(object)?;
            chmod(object, 0o4755)
        }
        "device" => {
            use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
            mknodat(CWD, object, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(1, 3))?;
            File::open(object).map(drop)
        }
        "tcp" => TcpStream::connect(object).map(drop),
        "unix" => UnixStream::connect(object).map(drop),
        "exec" => Command::new(object).status().map(drop),
        "signal" => Ok(rustix::process::test_kill_process(pid()?)?),
        "trace" => OpenOptions::new().read(true).write(true).open(format!("/proc/{object}/mem")).map(drop),
        "mount" => {
            let flags = rustix::mount::MountFlags::empty();
            Ok(rustix::mount::mount("none", object, "tmpfs", flags, None)?)
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sets a mode by the call that a process needs that creates files; the standard library's may be another one.
fn chmod(path: &str, mode: u32) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Mode, chmodat};
    Ok(chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?)
}
