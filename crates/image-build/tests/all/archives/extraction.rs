//! Archives drawn at random: the image of each, compared with what GNU tar and umoci extract into an empty directory.
//!
//! GNU tar runs with `-P` in a chroot(2), so that it follows links as the image does, and the links of the archive lead
//! nowhere else. It differs from umoci, and from the image:
//!
//! - tar makes no directories below a link whose target is missing, and fails;
//! - it replaces no directory that is not empty, and fails;
//! - it leaves `..` in names to the kernel, which follows links before it, and makes missing directories before it;
//! - it removes a link that has the place of a member also if the path of the member leads through that link, and then
//!   makes a directory in place of the link.
//!
//! So the files that tar extracts without an error are the measure of archives without `..` in names; the names, types and
//! contents that umoci extracts are that of all others, and of the few in which tar differs.

use super::files::{self, Files, Kind};
use super::oci;
use super::random::{Random, run};
use crate::tarball::Tarball;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::tar::{TarOptions, scan};
use pagefold_image_build::{BuildError, Options, Target, build};
use pagefold_testkit::skipped;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

const CASES: u64 = 700;
/// The folder with tar in the root directory that it extracts into.
const TOOLS: &str = ".tools";

/// An archive, and the names of its members for messages.
struct Drawn {
    bytes: Vec<u8>,
    members: Vec<String>,
    /// A name of a member or of a hard link's target has `..`.
    has_dots: bool,
}

/// A path of up to three of few names, so that many members meet.
fn path(random: &mut Random, has_dots: bool) -> String {
    let count = random.pick(&[1, 1, 2, 2, 3]);
    let mut names: Vec<&str> = (1..count)
        .map(|_| match has_dots && random.once_in(4) {
            true => "..",
            false => random.pick(&["a", "b", "c", "d", "."]),
        })
        .collect();
    names.push(random.pick(&["a", "b", "c", "d"]));
    format!("{}{}", random.pick(&["", "", "./", "/"]), names.join("/"))
}

/// The target of a symbolic link.
fn target(random: &mut Random) -> String {
    let start = random.pick(&["", "", "/", "../", "../../", "./", "no/../"]);
    match random.below(8) {
        0 => start.trim_end_matches('/').to_string() + "/",
        _ => start.to_string() + path(random, false).trim_start_matches('/'),
    }
}

fn draw(seed: u64) -> Drawn {
    let mut random = Random(seed);
    let has_dots = random.once_in(6);
    let mut drawn = Drawn { bytes: Vec::new(), members: Vec::new(), has_dots };
    let mut archive = Tarball::default();
    let mut names: Vec<String> = Vec::new();
    for number in 0..random.pick(&[3, 6, 9, 14]) {
        let name = path(&mut random, has_dots);
        let letter = random.pick(b"0000007552221115364");
        let link = match letter {
            b'2' => target(&mut random),
            // Mostly a member before it.
            b'1' if !names.is_empty() && !random.once_in(6) => {
                names[random.below(names.len() as u64) as usize].clone()
            }
            b'1' => path(&mut random, has_dots),
            _ => String::new(),
        };
        drawn.members.push(format!("{} {name} -> {link}", char::from(letter)));
        names.push(name.clone());
        archive = member(archive, &mut random, letter, &name, &link, number);
    }
    drawn.bytes = archive.end();
    drawn
}

/// Adds a member, whose name and numbers are in the header, or in one of the forms of headers before it.
fn member(
    mut archive: Tarball,
    random: &mut Random,
    letter: u8,
    name: &str,
    link: &str,
    number: u64,
) -> Tarball {
    let is_file = matches!(letter, b'0' | b'7');
    let data: Vec<u8> =
        vec![b'a' + number as u8; if is_file { random.pick(&[0, 1, 511, 512, 1500]) } else { 0 }];
    let is_hole = is_file && !data.is_empty() && random.once_in(4);
    let mut records: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut short = (name, link);
    match random.below(4) {
        0 => {
            archive = archive.long(b'L', name.as_bytes()).long(b'K', link.as_bytes());
            short = ("short", "short");
        }
        1 => {
            records.push(("path", name.into()));
            if !link.is_empty() {
                records.push(("linkpath", link.into()));
            }
            records.push(("mtime", format!("{}.5", 1_000_000_000 + number).into_bytes()));
            short = ("short", "short");
        }
        _ => {}
    }
    if is_hole {
        let len = data.len() + 3000;
        records.push(("GNU.sparse.size", len.to_string().into_bytes()));
        records.push(("GNU.sparse.numblocks", b"2".to_vec()));
        // tar needs the last entry for a hole at the end, and always writes it.
        records.push(("GNU.sparse.map", format!("1024,{},{len},0", data.len()).into_bytes()));
    }
    if !records.is_empty() {
        let records: Vec<(&str, &[u8])> =
            records.iter().map(|(key, value)| (*key, value.as_slice())).collect();
        archive = archive.pax(b'x', &records);
    }
    let mode = random.pick(&[0o644, 0o755, 0o600, 0o711]);
    let owner = random.pick(&[0, 1, 1000]);
    archive
        .raw(Tarball::header(short.0.as_bytes(), letter, data.len() as u64), |block| {
            block[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
            block[108..116].copy_from_slice(format!("{owner:07o}\0").as_bytes());
            block[136..148].copy_from_slice(format!("{:011o}\0", 900_000_000 + number).as_bytes());
            let link = if letter == b'1' || letter == b'2' { short.1 } else { "" };
            block[157..157 + link.len()].copy_from_slice(link.as_bytes());
            block[329..345].copy_from_slice(b"0000001\x000000003\0");
        })
        .data(&data)
}

/// The files of the image that is built of an archive, or the refusal.
fn built(archive: &Path) -> Result<Files, String> {
    let scanned = match scan(File::open(archive).unwrap(), archive, &TarOptions::default()) {
        Ok(scanned) => scanned,
        Err(error @ (BuildError::Archive { .. } | BuildError::Refused { .. })) => {
            return Err(error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = Options { compression: None, threads: 1, ..Options::for_target(Target::new(6, 12)) };
    build(&scanned.tree, &options, file.as_file(), &mut |_| ControlFlow::Continue(())).unwrap();
    Ok(files::of_image(&Image::open_file(file.path(), ReadOptions::default()).unwrap()))
}

/// GNU tar with its libraries, in a folder.
struct Tar {
    folder: tempfile::TempDir,
    files: Vec<PathBuf>,
    loader: String,
}

impl Tar {
    /// Copies the program of the machine. `None`: it cannot be run in another root.
    fn copy() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let of = |program: &str, arguments: &[&str]| {
            let run =
                Command::new(program).args(arguments).output().ok().filter(|run| run.status.success())?;
            Some(String::from_utf8_lossy(&run.stdout).into_owned())
        };
        of("tar", &["--version"]).filter(|text| text.contains("GNU tar"))?;
        let program = of("sh", &["-c", "command -v tar"])?;
        let libraries = of("ldd", &[program.trim()])?;
        let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        let mut files = Vec::new();
        for from in paths.clone().chain([program.trim()]) {
            let to = folder.path().join(Path::new(from).file_name()?);
            fs::copy(from, &to).ok()?;
            files.push(to);
        }
        let loader =
            paths.filter_map(|path| path.rsplit('/').next()).find(|name| name.starts_with("ld-"))?.into();
        Some(Tar { folder, files, loader })
    }

    /// Extracts an archive. Returns the files, and whether there was no error.
    fn extract(&self, archive: &Path) -> (Files, bool) {
        let root = tempfile::tempdir_in(self.folder.path()).unwrap();
        let tools = root.path().join(TOOLS);
        fs::create_dir(&tools).unwrap();
        for file in &self.files {
            fs::hard_link(file, tools.join(file.file_name().unwrap())).unwrap();
        }
        let mut command = Command::new("chroot");
        command.arg(root.path()).arg(format!("/{TOOLS}/{}", self.loader));
        command.args(["--library-path", &format!("/{TOOLS}"), &format!("/{TOOLS}/tar")]);
        command.args(["-xpPf", "-", "--numeric-owner", "--same-owner", "-C", "/"]);
        let run = command.stdin(File::open(archive).unwrap()).stderr(Stdio::null()).status().unwrap();
        (files::of_directory(root.path(), TOOLS), run.success())
    }
}

/// Leaves out what tar does not set: times of directories that changed later, or that have no member, and the root.
fn comparable(mut files: Files, wanted: &Files, started: i64) -> Files {
    files.remove(&b""[..]);
    for (path, file) in &mut files {
        let is_now = wanted.get(path).is_some_and(|wanted| wanted.mtime.0 >= started);
        if file.kind == Kind::Directory && is_now {
            file.mtime = (0, 0);
        }
    }
    files
}

#[test]
fn random_archives_give_what_tar_and_umoci_extract() {
    let test = "random_archives_give_what_tar_and_umoci_extract";
    if !rustix::process::geteuid().is_root() {
        return skipped!("{test}: only root may change the root directory of tar");
    }
    let Some(tar) = Tar::copy() else { return skipped!("{test}: there is no GNU tar with shared libraries") };
    let work = tempfile::tempdir().unwrap();
    let archive = work.path().join("a.tar");
    let (mut equal, mut for_umoci) = (0, Vec::new());
    run(test, CASES, |seed, replayed| {
        let drawn = draw(seed);
        fs::write(&archive, &drawn.bytes).unwrap();
        let built = built(&archive);
        let shown = || format!("{replayed}\n{}\n", drawn.members.join("\n"));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 - 1;
        let (wanted, is_whole) = tar.extract(&archive);
        let layer = |found: &Files, disputed| oci::Layer {
            bytes: drawn.bytes.clone(),
            found: found.clone(),
            shown: shown(),
            disputed,
        };
        match &built {
            Ok(found) if is_whole && !drawn.has_dots => {
                let text = files::differences(
                    &comparable(found.clone(), &wanted, started),
                    &comparable(wanted.clone(), &wanted, started),
                );
                match text.is_empty() {
                    true => equal += 1,
                    false => for_umoci.push(layer(found, Some(text))),
                }
            }
            Ok(found) => for_umoci.push(layer(found, None)),
            Err(refusal) => assert!(!is_whole || drawn.has_dots, "{}tar takes it: {refusal}", shown()),
        }
    });
    let disputed = for_umoci.iter().filter(|layer| layer.disputed.is_some()).count() as u64;
    let is_one = std::env::var_os("PAGEFOLD_ARCHIVE_SEED").is_some();
    let first =
        for_umoci.iter().find_map(|layer| Some(format!("{}{}", layer.shown, layer.disputed.as_ref()?)));
    assert!(is_one || equal > CASES / 10, "{equal} archives are as tar extracts them");
    assert!(is_one || disputed <= equal / 10, "{disputed} archives differ from tar: {first:?}");
    oci::compare(&for_umoci);
}
