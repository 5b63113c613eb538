//! The command lines of `mkfs.erofs`, `fsck.erofs` and `dump.erofs`, as programs call these.
//!
//! The kernel and, where they are installed, the programs of erofs-utils 1.9 read what is built.

use crate::support::{Ran, Sandbox, is_root, no_loop};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A sandbox with links of the names of erofs-utils, a directory `source` and an archive of it.
pub fn sandbox() -> Sandbox {
    let s = Sandbox::new();
    for name in ["mkfs.erofs", "fsck.erofs", "dump.erofs"] {
        symlink(env!("CARGO_BIN_EXE_pagefold"), s.path(name)).unwrap();
    }
    let source = s.path("source");
    fs::create_dir_all(source.join("usr/lib")).unwrap();
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    fs::write(source.join("usr/lib/program"), &program[..program.len().min(300 << 10)]).unwrap();
    fs::write(source.join("usr/text.c"), "a line of text\n".repeat(3000)).unwrap();
    fs::write(source.join("short"), "short\n").unwrap();
    fs::write(source.join("empty"), "").unwrap();
    fs::hard_link(source.join("short"), source.join("usr/linked")).unwrap();
    symlink("usr/text.c", source.join("link")).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&source).arg("-cf").arg(s.path("layer.tar")).arg(".");
    assert!(tar.status().unwrap().success());
    s
}

/// Runs a program of erofs-utils by its link, in the sandbox's folder; `words` are split at blanks.
pub fn run(s: &Sandbox, words: &str, stdin: Option<&Path>) -> Ran {
    let mut all = words.split_whitespace();
    let stdin = stdin.map_or_else(Stdio::null, |path| fs::File::open(path).unwrap().into());
    let mut command = Command::new(s.path(all.next().unwrap()));
    command.args(all).stdin(stdin).current_dir(s.path("")).env("TZ", "UTC").env("PAGEFOLD_CACHE_DIR", "");
    command.env("PAGEFOLD_RUNTIME_DIR", s.runtime());
    Ran::new(words, command.output().unwrap())
}

pub fn ok(s: &Sandbox, words: &str) -> String {
    let ran = run(s, words, None);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

/// A program of erofs-utils 1.9, if there is one.
pub fn foreign(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("PAGEFOLD_EROFS_UTILS")?).join("bin").join(name);
    path.exists().then_some(path)
}

pub fn is_same(one: &Path, other: &Path) -> bool {
    Command::new("diff").args(["-r", "--no-dereference"]).args([one, other]).status().unwrap().success()
}

/// Compares an image with the directory: by this program, and by the kernel and erofs-utils where they can.
fn check(s: &Sandbox, test: &str, image: &str) {
    let out = s.path("out");
    ok(s, &format!("fsck.erofs --extract=out {image}"));
    assert!(is_same(&s.path("source"), &out), "{test}");
    fs::remove_dir_all(&out).unwrap();
    if let Some(fsck) = foreign("fsck.erofs") {
        let checked = Command::new(fsck).arg("--extract").arg(s.path(image)).output().unwrap();
        assert!(checked.status.success(), "{test}: {checked:?}");
    } else {
        skipped!("{test}: PAGEFOLD_EROFS_UTILS names no folder with erofs-utils");
    }
    let mnt = s.path("mnt");
    fs::create_dir_all(&mnt).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&s.path(image), &mnt]).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        skipped!("{test}: the kernel cannot mount {image} here");
        return;
    }
    let same = is_same(&s.path("source"), &mnt);
    let links = fs::metadata(mnt.join("short")).unwrap().nlink();
    assert!(Command::new("umount").arg(&mnt).status().unwrap().success());
    assert!(same && links >= 1, "{test}: {image}");
}

#[test]
fn mkfs_builds_what_its_callers_ask_for() {
    const TEST: &str = "mkfs_builds_what_its_callers_ask_for";
    let s = sandbox();
    let uuid = "c1b9d5a2-f162-11cf-9ece-0020afc76f16";
    // containerd's differ looks for this before it converts a layer.
    assert!(ok(&s, "mkfs.erofs --help").contains("--tar="));
    assert!(ok(&s, "mkfs.erofs -V").starts_with("mkfs.erofs "));
    for (number, line) in [
        // containerd: a layer from standard input, as it is, or in the form of which layers are merged.
        &format!("--tar=f --aufs --quiet -Enoinline_data -U {uuid} OUT <"),
        "--tar=f --aufs --quiet -b4096 -T0 --mkfs-time --sort=none -zzstd,level=3 OUT <",
        "--tar=f --quiet OUT layer.tar",
        // mkosi.
        "--quiet -L root -T 1700000000 --all-root -zzstd -C65536 -Efragments,dedupe OUT source",
        // systemd-repart.
        &format!("-U {uuid} --quiet -z lz4hc,level=12 OUT source"),
        // Buildroot.
        "-zlz4hc -C65536 -E ztailpacking -E all-fragments OUT source",
        // Android's build of partitions.
        &format!("-z lz4hc,9 -C 262144 -E legacy-compress,force-inode-compact --mount-point /system -U {uuid} -T 5 OUT source"),
        // Installers and routers.
        "-zlzma,level=6,dictsize=8388608 -C1048576 -Eztailpacking,fragments,dedupe,^inline_data OUT source",
        "-zdeflate,9 -x1 --force-uid=1 --force-gid=2 --workers=2 OUT source",
        "-E force-inode-extended,nosbcrc,xattr-name-filter --ignore-mtime OUT source",
        "-zlz4:zstd -m4096 --zD -T0 OUT source",
    ]
    .into_iter()
    .enumerate()
    {
        let image = format!("image{number}");
        let stdin = line.contains('<').then(|| s.path("layer.tar"));
        let words = format!("mkfs.erofs {}", line.replace(" <", "").replace("OUT", &image));
        let ran = run(&s, &words, stdin.as_deref());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!line.contains("--quiet") || ran.out.is_empty(), "{ran:?}");
        check(&s, TEST, &image);
        assert_eq!(line.contains(uuid), ok(&s, &format!("dump.erofs -s {image}")).contains(uuid), "{words}");
    }
}

#[test]
fn the_features_are_those_that_the_options_name() {
    let s = sandbox();
    let fields = |options: &str| {
        ok(&s, &format!("mkfs.erofs --quiet {options} image source"));
        let printed = ok(&s, "dump.erofs image");
        let field = |name: &str| {
            let line = printed.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_string()).unwrap_or_default()
        };
        let features = field("Filesystem incompatible features");
        (features, field("Required upstream Linux kernel version"), field("Filesystem created"))
    };
    assert_eq!(fields("").0, "", "an uncompressed image must not have lz4_0padding");
    let of = |options| {
        let (features, kernel, _) = fields(options);
        (features, kernel)
    };
    let owned = |one: &str, other: &str| (one.to_string(), other.to_string());
    assert_eq!(of("-zlz4"), owned("lz4_0padding", "5.4"));
    assert_eq!(of("-zlz4hc -C65536"), owned("lz4_0padding compr_cfgs big_pcluster", "5.13"));
    assert_eq!(of("-zlz4 -Eztailpacking"), owned("lz4_0padding ztailpacking", "5.17"));
    assert_eq!(of("-zlz4 -Efragments"), owned("lz4_0padding fragments dedupe", "6.1"));
    assert!(of("-zzstd").1 == "6.10" && of("-zlzma").1 == "5.16" && of("-zdeflate").1 == "6.6");
    assert_eq!(fields("-T0").2, "Thu Jan  1 00:00:00 1970");
    // The layouts of a file, as its inode says.
    let layout = |options: &str, path: &str| {
        ok(&s, &format!("mkfs.erofs --quiet {options} image source"));
        let printed = ok(&s, &format!("dump.erofs --path={path} image"));
        let after =
            |name: &str| printed.split_once(name).unwrap().1.split_whitespace().next().unwrap().to_string();
        (after("Layout:"), after("Inode size:"))
    };
    assert_eq!(layout("-T0", "/short"), owned("2", "32"));
    assert_eq!(layout("-T0 -E^inline_data", "/short"), owned("0", "32"));
    assert_eq!(layout("-T0 -Eforce-inode-extended", "/short"), owned("2", "64"));
    assert_eq!(layout("-T0 --mkfs-time", "/short"), owned("2", "64"));
    assert_eq!(layout("-T0 --mkfs-time --ignore-mtime", "/short"), owned("2", "32"));
    assert_eq!(layout("-zlz4", "/usr/text.c").0, "3");
    assert_eq!(layout("-zlz4 -Elegacy-compress", "/usr/text.c").0, "1");
    let failed = run(&s, "mkfs.erofs -Eforce-inode-compact --force-uid=70000 image source", None);
    failed.fails(1, "cannot be compact");
}

#[test]
fn owners_and_left_out_paths_are_those_of_the_options() {
    let s = sandbox();
    let listed = |options: &str| {
        ok(&s, &format!("mkfs.erofs --quiet {options} image source"));
        s.ok(&format!("image ls -lR {}", s.path("image").display()))
    };
    let owners = |options: &str| {
        let listed = listed(options);
        let line = listed.lines().find(|line| line.ends_with("/short")).unwrap();
        line.split_whitespace().skip(2).take(2).collect::<Vec<_>>().join(":")
    };
    assert_eq!(owners("--all-root"), "0:0");
    assert_eq!(owners("--all-root --uid-offset=5 --gid-offset=7"), "5:7");
    assert_eq!(owners("--force-uid=10 --force-gid=20 --gid-offset=1"), "10:21");
    let names = listed("--exclude-path=usr/lib --exclude-regex=^usr/.*[.]c$");
    assert!(
        names.contains("/usr/linked") && !names.contains("lib") && !names.contains("/usr/text.c"),
        "{names}"
    );
    let names = listed("--exclude-path=linked --exclude-regex=^lib");
    assert!(names.contains("/usr/linked") && names.contains("/usr/lib/program"), "{names}");
    let links = |options: &str| {
        let listed = listed(options);
        listed
            .lines()
            .find(|line| line.ends_with("/short"))
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .to_string()
    };
    assert_eq!([links(""), links("--hard-dereference")], ["2", "1"]);
}

#[test]
fn hints_choose_clusters_and_compressors() {
    let s = sandbox();
    fs::write(s.path("hints"), "0 \\.c$\n65536 1 ^usr/lib/\n").unwrap();
    ok(&s, "mkfs.erofs --quiet -zlz4:zstd --compress-hints=hints image source");
    check(&s, "hints_choose_clusters_and_compressors", "image");
    let image = s.path("image").display().to_string();
    let extents = |path: &str| {
        let shown: serde_json::Value =
            serde_json::from_str(&s.ok(&format!("image show --json {image} {path}"))).unwrap();
        shown["extents"].as_array().unwrap().clone()
    };
    assert!(extents("usr/text.c").iter().all(|extent| extent["place"] == "plain"));
    let clusters = extents("usr/lib/program");
    assert!(clusters.iter().any(|extent| extent["algorithm"] == "zstd"), "{clusters:?}");
    assert!(clusters.iter().any(|extent| extent["stored_bytes"].as_u64() > Some(4096)), "{clusters:?}");
    // The others keep the clusters of -C, which are those of a block.
    fs::write(s.path("hints"), "65536 nothing\n").unwrap();
    ok(&s, "mkfs.erofs --quiet -zlz4 --compress-hints=hints image source");
    let clusters = extents("usr/lib/program");
    assert!(clusters.iter().all(|extent| extent["stored_bytes"].as_u64().is_none_or(|bytes| bytes == 4096)));
    fs::write(s.path("hints"), "0\n").unwrap();
    run(&s, "mkfs.erofs -zlz4 --compress-hints=hints image source", None).fails(1, "it has no expression");
}

#[test]
fn an_existing_file_or_device_is_written_as_it_is() {
    const TEST: &str = "an_existing_file_or_device_is_written_as_it_is";
    let s = sandbox();
    let image = s.path("image");
    fs::write(&image, vec![7; 4 << 20]).unwrap();
    let before = fs::metadata(&image).unwrap().ino();
    ok(&s, "mkfs.erofs --quiet -zlz4 image source");
    let after = fs::metadata(&image).unwrap();
    assert!(
        after.ino() == before && after.len() < 1 << 20,
        "it is the same file, and has nothing but the image"
    );
    check(&s, TEST, "image");
    // The bytes before and after the image stay.
    let disk = s.path("disk");
    fs::write(&disk, vec![7; 4 << 20]).unwrap();
    ok(&s, "mkfs.erofs --quiet -zlz4 --offset=1048576 disk source");
    let bytes = fs::read(&disk).unwrap();
    assert!(
        bytes.len() == 4 << 20
            && bytes[..1 << 20].iter().all(|byte| *byte == 7)
            && bytes.ends_with(&[7; 512])
    );
    fs::write(s.path("part"), &bytes[1 << 20..]).unwrap();
    check(&s, TEST, "part");
    ok(&s, "fsck.erofs --offset=1048576 disk");
    assert_eq!(ok(&s, "dump.erofs -s --offset=0x100000 disk"), ok(&s, "dump.erofs -s part"));
    if let Some(why) = no_loop() {
        return skipped!("{TEST}: {why}");
    }
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&disk).output().unwrap();
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_string();
    let ran = run(&s, &format!("mkfs.erofs --quiet {device} source"), None);
    let too_long = run(&s, &format!("mkfs.erofs --quiet --offset=4190208 {device} source"), None);
    Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert_eq!(ran.code, 0, "{ran:?}");
    too_long.fails(1, "No space left");
    check(&s, TEST, "disk");
}

#[test]
fn equal_chunks_are_stored_once_and_holes_not_at_all() {
    const TEST: &str = "equal_chunks_are_stored_once_and_holes_not_at_all";
    let s = sandbox();
    let chunk = |seed: u8| (0..8192u32).map(|at| ((at * 31) >> 3) as u8 ^ seed).collect::<Vec<u8>>();
    let file = fs::File::create(s.path("source/one")).unwrap();
    for (at, seed) in [(0, 1), (1, 2), (2, 1), (9, 3)] {
        file.write_all_at(&chunk(seed), at * 8192).unwrap();
    }
    fs::write(s.path("source/two"), [chunk(3), chunk(1), b"the end".to_vec()].concat()).unwrap();
    for (form, entry_bytes) in [("force-inode-blockmap", 4), ("force-chunk-indexes", 8)] {
        ok(&s, &format!("mkfs.erofs --quiet --chunksize=8192 -E{form} image source"));
        check(&s, TEST, "image");
        s.ok(&format!("image check --strict {}", s.path("image").display()));
        let image = s.path("image").display().to_string();
        let places = |path: &str| {
            let shown = s.ok(&format!("image show --json {image} {path}"));
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            assert_eq!(shown["layout"], "chunks", "{entry_bytes}");
            let extents = shown["extents"].as_array().unwrap().iter();
            let all = extents.map(|extent| (extent["place"].to_string(), extent["at"].to_string()));
            all.collect::<Vec<_>>()
        };
        let (one, two) = (places("one"), places("two"));
        assert!(one.iter().any(|(place, _)| place.contains("hole")), "{one:?}");
        assert!(two.iter().any(|at| one.contains(at)), "{one:?} {two:?}");
    }
    run(&s, "mkfs.erofs --chunksize=8192 -zlz4 image source", None).fails(1, "leave out -z");
}

/// A program that found the old image in place of half a new one would read wrong data.
#[test]
fn a_build_that_fails_at_an_offset_leaves_no_image_there() {
    let s = sandbox();
    ok(&s, "mkfs.erofs --quiet image source");
    let image = fs::read(s.path("image")).unwrap();
    let disk = [vec![7; 1 << 20], image].concat();
    fs::write(s.path("disk"), &disk).unwrap();
    // Nothing was written when options are refused.
    run(&s, "mkfs.erofs --offset=1048576 -L 1234567890123456 disk source", None).fails(1, "15 bytes");
    assert!(fs::read(s.path("disk")).unwrap() == disk);
    // The limit of the length of files, in blocks of 512 bytes, ends the build after some blocks.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2064; ./mkfs.erofs --quiet --offset=1048576 disk source"]);
    let ran = Ran::new("limited", limited.current_dir(s.path("")).output().unwrap());
    ran.fails(1, "File too large");
    let left = fs::read(s.path("disk")).unwrap();
    assert!(left.len() == disk.len() && left[..1 << 20] == disk[..1 << 20]);
    fs::write(s.path("part"), &left[1 << 20..]).unwrap();
    run(&s, "fsck.erofs part", None).fails(1, "part");
}

#[test]
fn what_mkfs_cannot_do_is_refused_by_name() {
    let s = sandbox();
    for (line, says) in [
        ("--tar=headerball OUT layer.tar", "--tar: =headerball is not possible"),
        ("--tar=i -zlz4 OUT layer.tar", "leave out -z"),
        ("--incremental=data OUT source", "--incremental is not possible"),
        ("--blobdev=b OUT source", "--blobdev is not possible"),
        ("--no-such-option OUT source", "unknown option --no-such-option"),
        ("-Q OUT source", "unknown option -Q"),
        ("-zunknownalg OUT source", "unknown compressor 'unknownalg'"),
        ("-E no-such-feature OUT source", "unknown feature 'no-such-feature'"),
        ("OUT layer.tar", "--tar=f for an archive"),
        ("OUT source source", "of several sources each is an image"),
        ("OUT /nonexistent/source", "No such file"),
        ("--tar=f OUT /proc/version", "'/proc/version'"),
    ] {
        run(&s, &format!("mkfs.erofs {}", line.replace("OUT", "image")), None).fails(1, says);
        assert!(!s.path("image").exists(), "{line}");
    }
    run(&s, "fsck.erofs --nid=36 image", None).fails(1, "--nid is not possible");
    run(&s, "dump.erofs -e image", None).fails(1, "--path or --nid");
    s.run("mkfs.erofs --incremental image source").fails(1, "--incremental is not possible");
    assert!(s.ok("fsck.erofs --help").contains("--extract=X"));
}

#[test]
fn images_are_sources_whose_data_is_copied() {
    let s = sandbox();
    ok(&s, "mkfs.erofs --quiet -zlz4 first source");
    ok(&s, "mkfs.erofs --quiet --clean=data -zzstd -C65536 second first");
    fs::remove_file(s.path("first")).unwrap();
    check(&s, "images_are_sources_whose_data_is_copied", "second");
}

#[test]
fn fsck_reports_damage_and_extracts() {
    let s = sandbox();
    ok(&s, "mkfs.erofs --quiet -zlz4 image source");
    assert!(ok(&s, "fsck.erofs --extract image").contains("0 errors"));
    assert!(ok(&s, "fsck.erofs -a -d1 -p image").contains("0 errors"));
    // A directory that has files is left alone, unless they may be replaced.
    ok(&s, "fsck.erofs --extract=out --no-preserve image");
    run(&s, "fsck.erofs --extract=out image", None).fails(1, "not empty");
    ok(&s, "fsck.erofs --extract=out --overwrite --xattrs image");
    assert!(is_same(&s.path("source"), &s.path("out")));
    run(&s, "fsck.erofs --extract=/ image", None).fails(1, "--force");
    let file = fs::File::options().write(true).open(s.path("image")).unwrap();
    file.write_all_at(&[0xff; 4096], 4096).unwrap();
    run(&s, "fsck.erofs image", None).fails(1, "wrong with the image");
    file.write_all_at(&[0xff; 4], 1024).unwrap();
    run(&s, "fsck.erofs image", None).fails(1, "image");
}

/// Scripts look for fields of dump.erofs.
#[test]
fn dump_prints_what_dump_of_erofs_utils_prints() {
    const TEST: &str = "dump_prints_what_dump_of_erofs_utils_prints";
    let s = sandbox();
    ok(&s, "mkfs.erofs --quiet -zlz4hc -C16384 -Eztailpacking -T1700000000 --all-root image source");
    let udev = ok(&s, "dump.erofs --blkid-udev image");
    assert!(udev.contains("ID_FS_TYPE=erofs\n"), "{udev}");
    assert_eq!(ok(&s, "dump.erofs --cat --path=/short image"), "short\n");
    assert!(ok(&s, "dump.erofs -S image").contains("Filesystem symlink file count:"));
    let root = ok(&s, "dump.erofs --ls --path=/ image");
    let nid = root.split_once("NID: ").unwrap().1.split_whitespace().next().unwrap();
    assert!(ok(&s, &format!("dump.erofs --ls --nid={nid} image")).contains("short"));
    run(&s, "dump.erofs --path=/none image", None).fails(1, "no such file");
    let Some(dump) = foreign("dump.erofs") else {
        return skipped!("{TEST}: PAGEFOLD_EROFS_UTILS names no folder with erofs-utils");
    };
    for words in [
        "-s image",
        "--path=/usr/text.c image",
        "--path=/usr image",
        "-e --path=/usr/lib/program image",
        "-e --path=/usr/text.c image",
        "--ls --path=/usr image",
        "--ls --path=/ image",
        "--path=/link image",
        "--blkid-udev image",
        "--cat --path=/usr/text.c image",
    ] {
        let theirs =
            Command::new(&dump).args(words.split(' ')).current_dir(s.path("")).env("TZ", "UTC").output();
        let theirs = String::from_utf8(theirs.unwrap().stdout).unwrap();
        assert_eq!(ok(&s, &format!("dump.erofs {words}")), theirs, "{words}");
    }
}

/// A user who is not root owns what fsck.erofs extracts.
#[test]
fn attributes_are_shared_as_x_says_and_xattrs_are_extracted_on_request() {
    const TEST: &str = "attributes_are_shared_as_x_says_and_xattrs_are_extracted_on_request";
    let s = sandbox();
    let set = |path: PathBuf| {
        Command::new("setfattr")
            .args(["-n", "user.a", "-v", "value"])
            .arg(path)
            .status()
            .is_ok_and(|s| s.success())
    };
    if !["short", "empty"].iter().all(|name| set(s.path("source").join(name))) {
        return skipped!("{TEST}: files have no attributes here");
    }
    let sizes = |options: &str| {
        ok(&s, &format!("mkfs.erofs --quiet {options} image source"));
        let printed = ok(&s, "dump.erofs --path=/short image");
        printed
            .split_once("Xattr size: ")
            .unwrap()
            .1
            .split_whitespace()
            .next()
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    let (inline, shared) = (sizes("-x2"), sizes("-x1"));
    assert!(inline > shared && shared > 0, "{inline} {shared}");
    for (option, wanted) in [("--xattrs", true), ("--no-xattrs", false)] {
        let _ = fs::remove_dir_all(s.path("out"));
        ok(&s, &format!("fsck.erofs --extract=out {option} image"));
        let read = Command::new("getfattr").args(["-n", "user.a"]).arg(s.path("out/short")).output().unwrap();
        assert_eq!(read.status.success(), wanted, "{option}");
    }
    if !is_root() {
        skipped!("{TEST}: needs root for owners");
    }
}

/// Buildroot makes all its file systems under fakeroot.
#[test]
fn owners_and_devices_of_fakeroot_are_in_the_image() {
    const TEST: &str = "owners_and_devices_of_fakeroot_are_in_the_image";
    let s = sandbox();
    let script = "chown 12:34 source/short && mknod source/null c 1 3 && setfattr -n user.a -v b source/empty; \
                  ./mkfs.erofs --quiet -zlz4 -T0 image source";
    let mut command = Command::new("fakeroot");
    command.args(["sh", "-c", script]).current_dir(s.path("")).env("PAGEFOLD_CACHE_DIR", "");
    match command.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return skipped!("{TEST}: needs fakeroot"),
        made => assert!(made.as_ref().unwrap().status.success(), "{made:?}"),
    }
    let listed = s.ok(&format!("image ls -lR {}", s.path("image").display()));
    let line =
        |end: &str| listed.lines().find(|line| line.ends_with(end)).unwrap_or_else(|| panic!("{listed}"));
    assert!(line("/null").starts_with("crw") && line("/null").contains("1, 3"), "{listed}");
    assert!(line("/short").split_whitespace().skip(1).take(3).eq(["2", "12", "34"]), "{listed}");
    assert_eq!(s.ok(&format!("image cat {} /short", s.path("image").display())), "short\n");
    // The program may be a file of this name, and FILE in SOURCE is no part of the image.
    let script = "cp -L mkfs.erofs copy && rm mkfs.erofs && mv copy mkfs.erofs && echo old > 'source/usr/image[1]'; \
                  ./mkfs.erofs --quiet -T0 'source/usr/image[1]' source";
    let mut command = Command::new("fakeroot");
    command.args(["sh", "-ec", script]).current_dir(s.path("")).env("PAGEFOLD_CACHE_DIR", "");
    let made = command.output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let listed = s.ok(&format!("image ls -R {}", s.path("source/usr/image[1]").display()));
    assert!(listed.contains("/short") && !listed.contains("image[1]"), "{listed}");
}

/// A time of creation is not a limit, as that of the environment is, and `*` matches nothing where no file has attributes.
#[test]
fn the_time_of_creation_alone_changes_no_file_and_is_no_reason_for_a_note() {
    let s = sandbox();
    let ran = run(&s, "mkfs.erofs -T0 --mkfs-time image source", None);
    assert!(ran.code == 0 && !ran.err.contains("matched nothing"), "{ran:?}");
    s.ok(&format!("image extract {} {}", s.path("image").display(), s.path("out").display()));
    let time = |name: &str| fs::metadata(s.path(name)).unwrap().mtime();
    assert_eq!(time("out/short"), time("source/short"));
    assert!(time("out/short") > 0);
}

#[test]
fn owners_modes_and_capabilities_come_from_a_text() {
    const TEST: &str = "owners_modes_and_capabilities_come_from_a_text";
    let s = sandbox();
    let lines = [
        " 0 0 755",
        "system/short 1 2 0640",
        "system/empty 0 0 600",
        "system/link 0 0 777",
        "system/usr 0 2000 0751",
        "system/usr/lib 0 0 755",
        "system/usr/linked 1 2 0640",
        "system/usr/text.c 9 9 644",
        "system/usr/lib/program 0 3004 0755 capabilities=0x2000",
    ];
    fs::write(s.path("config"), lines.join("\n")).unwrap();
    ok(&s, "mkfs.erofs --quiet --fs-config-file=config --mount-point=/system image source");
    let shown = ok(&s, "dump.erofs --path=/usr/lib/program image");
    assert!(shown.contains("3004"), "{shown}");
    check(&s, TEST, "image");
    let mnt = s.path("mnt");
    let mount =
        Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&s.path("image"), &mnt]).output();
    if mount.is_ok_and(|mounted| mounted.status.success()) {
        let of = |path: &str| {
            let found = fs::metadata(mnt.join(path)).unwrap();
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        let found = ["", "short", "usr", "usr/lib/program"].map(of);
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(mnt.join("usr/lib/program"), "security.capability", &mut value);
        assert!(Command::new("umount").arg(&mnt).status().unwrap().success());
        assert_eq!(found, [(0, 0, 0o755), (1, 2, 0o640), (0, 2000, 0o751), (0, 3004, 0o755)]);
        assert_eq!(len.unwrap(), 20);
    } else {
        skipped!("{TEST}: the kernel cannot mount image here");
    }
    fs::write(s.path("config"), lines[..8].join("\n")).unwrap();
    let ran = run(&s, "mkfs.erofs --quiet --fs-config-file=config --mount-point=system other source", None);
    ran.fails(1, "system/usr/lib/program' cannot be stored: the file of --fs-config-file has no line for it");
    fs::write(s.path("config"), "x y z").unwrap();
    let ran = run(&s, "mkfs.erofs --quiet --fs-config-file=config other source", None);
    ran.fails(1, "--fs-config-file: 'config' is a file whose line 1 is wrong");
}
