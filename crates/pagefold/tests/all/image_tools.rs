//! The commands that read images without mounting them.

use crate::images::handmade::{DIRECTORY, File, REGULAR, image};
use crate::images::reference_image;
use crate::support::{Sandbox, is_root};
use sha2::{Digest, Sha256};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

#[test]
fn ls_cat_and_show_read_a_reference_image() {
    let image = reference_image("fragzt");
    let (s, image) = (Sandbox::new(), image.display());
    let names = s.ok(&format!("image ls {image}"));
    assert!(names.lines().any(|l| l == "text1m.txt") && !names.contains("file_0000_"), "{names}");
    let long = s.ok(&format!("image ls -l {image} /lnk"));
    assert!(
        long.starts_with("lrwxrwxrwx") && long.contains("2023-11-14 22:13:20 /lnk -> small.txt"),
        "{long}"
    );
    let all = s.ok(&format!("image ls -R --json {image}"));
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["schema_version"], 1);
    let all = all["entries"].as_array().unwrap();
    assert_eq!(all.len(), 1023);
    assert_eq!((&all[0]["path"], &all[0]["kind"]), (&"/".into(), &"directory".into()));
    // A symbolic link, and a file that is longer than the buffer of `cat`.
    assert_eq!(s.ok(&format!("image cat {image} lnk /small.txt")), "hello world\nhello world\n");
    let output = s.command(&format!("image cat {image} /text1m.txt")).output().unwrap();
    assert_eq!(output.stdout.len(), 1 << 20);
    s.run(&format!("image cat {image} /nosuch")).fails(3, "no such file");
    s.run(&format!("image cat {image} /bigdir")).fails(1, "a directory");
    s.run(&format!("image ls {image} /nosuch")).fails(3, "no such file");
    s.run("image ls /nonexistent/image").fails(3, "No such file");
    s.run(&format!("image ls -m 4K {image}")).fails(2, "--memory");
    let text = s.ok(&format!("image show {image}"));
    for word in ["ztailpacking", "Linux 6.1 or later", "2023-11-14", "lz4, window"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    let show: serde_json::Value = serde_json::from_str(&s.ok(&format!("image show --json {image}"))).unwrap();
    assert_eq!((&show["kernel"], &show["block_bytes"]), (&"6.1".into(), &4096.into()));
    assert_eq!(show["tree"]["kinds"]["regular"]["count"], 1013);
    let file: serde_json::Value =
        serde_json::from_str(&s.ok(&format!("image show --json {image} text1m.txt"))).unwrap();
    let extents = file["extents"].as_array().unwrap();
    let ends: u64 = extents.iter().map(|e| e["len_bytes"].as_u64().unwrap()).sum();
    assert_eq!(ends, 1 << 20);
    assert!(s.ok(&format!("image show {image} /text1m.txt")).contains("lz4"));
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_no_error() {
    let image = reference_image("zstd");
    let s = Sandbox::new();
    for words in ["image cat IMAGE /zeros.bin", "image ls -R IMAGE", "image tar IMAGE"] {
        let words = words.replace("IMAGE", &image.display().to_string());
        let mut child = s.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    }
}

#[test]
fn the_exit_code_of_check_reports_errors() {
    let image = reference_image("lz4hc64");
    let s = Sandbox::new();
    let clean = s.ok(&format!("image check {}", image.display()));
    assert!(clean.contains("0 errors, 0 warnings"), "{clean}");
    let mut bytes = std::fs::read(&image).unwrap();
    let half = bytes.len() / 2;
    bytes.truncate(half);
    let cut = s.path("cut.erofs");
    std::fs::write(&cut, bytes).unwrap();
    let ran = s.run(&format!("image check --json {}", cut.display()));
    ran.fails(6, "wrong with the image");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["what"].as_str().unwrap().contains("cut off")), "{report}");
    assert_eq!(report["errors"], findings.len() as u64);
    s.run("image check /dev/null").fails(2, "neither a file nor a block device");
    s.run("image check /proc/self/status").fails(6, "not an EROFS image");
}

#[test]
fn a_strict_check_names_the_broken_rules() {
    let s = Sandbox::new();
    let path = s.path("odd.erofs");
    let mut bytes = std::fs::read(reference_image("lz4hc64")).unwrap();
    // A reserved byte of the superblock, whose checksum is turned off.
    bytes[1024 + 0x08] &= !1;
    bytes[1024 + 0x6a] = 1;
    std::fs::write(&path, bytes).unwrap();
    let tolerant = s.ok(&format!("image check {}", path.display()));
    assert!(tolerant.contains("[sb-checksum]") && tolerant.contains("0 errors, 1 warning"), "{tolerant}");
    let ran = s.run(&format!("image check --strict {}", path.display()));
    ran.fails(6, "wrong with the image");
    assert!(ran.out.contains("[sb-reserved]\n") && ran.out.contains("1 error, 1 warning"), "{ran:?}");
    let ran = s.run(&format!("image check --strict --json {}", path.display()));
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let rules: Vec<_> = report["findings"].as_array().unwrap().iter().map(|f| f["rule"].as_str()).collect();
    assert!(rules.contains(&Some("sb-reserved")) && rules.len() == 2, "{report}");
    let help = s.ok("image check --help");
    assert!(help.contains("Rules:") && help.contains("  sb-reserved       Reserved fields"), "{help}");
}

#[test]
fn extract_creates_files_and_reports_what_is_left_out() {
    let image = reference_image("deflate");
    let s = Sandbox::new();
    let (dir, image) = (s.path("out"), image.display());
    let ran = s.run(&format!("image extract {image} {} -j 2", dir.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("left out; --privileged"), "{ran:?}");
    let big = std::fs::read(dir.join("zeros.bin")).unwrap();
    assert_eq!(Sha256::digest(&big), Sha256::digest(vec![0; 3 << 20]));
    assert_eq!(std::fs::read_link(dir.join("lnk")).unwrap().to_str(), Some("small.txt"));
    s.run(&format!("image extract {image} {}", dir.display())).fails(4, "--overwrite");
    let json = s.ok(&format!("image extract --json --overwrite {image} {} /small.txt", dir.display()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["errors"], &json["written_bytes"]), (&0.into(), &12.into()));
    let other = s.path("other");
    s.run(&format!("image extract --max-bytes 1M {image} {}", other.display())).fails(1, "--max-bytes");
    s.run(&format!("image extract {image}")).fails(2, "DIR");
    for verb in ["check", "extract"] {
        for threads in ["0", "257", "100000000000"] {
            s.run(&format!("image {verb} -j {threads} {image} {}", s.path("never").display()))
                .fails(2, "--threads");
        }
    }
    assert!(!s.path("never").exists());
}

#[test]
fn links_in_the_middle_of_a_path_are_followed() {
    let s = Sandbox::new();
    let (tree, image) = (s.path("tree"), s.path("image"));
    std::fs::create_dir_all(tree.join("real/deep")).unwrap();
    std::fs::write(tree.join("real/deep/file"), "contents\n").unwrap();
    std::os::unix::fs::symlink("real", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("/real/deep", tree.join("real/up")).unwrap();
    let made = std::process::Command::new("mkfs.erofs").arg(&image).arg(&tree).output();
    let Ok(made) = made else {
        pagefold_testkit::skipped!("links_in_the_middle_of_a_path_are_followed: no mkfs.erofs");
        return;
    };
    assert!(made.status.success(), "{made:?}");
    let image = image.display();
    for path in ["link/up/file", "/link//deep/./file", "real/up/../up/file"] {
        assert!(s.ok(&format!("image ls -l {image} {path}")).contains(" 9 "), "{path}");
        let shown: serde_json::Value =
            serde_json::from_str(&s.ok(&format!("image show --json {image} {path}"))).unwrap();
        assert_eq!(shown["path"], "/real/deep/file", "{path}");
        assert_eq!(s.ok(&format!("image cat {image} {path}")), "contents\n");
        let out = s.path("out");
        s.run(&format!("image extract {image} {} {path}", out.display()));
        assert_eq!(std::fs::read(out.join("real/deep/file")).unwrap(), b"contents\n", "{path}");
        assert!(!out.join("link").exists());
        std::fs::remove_dir_all(&out).unwrap();
        assert!(s.ok(&format!("image tar {image} {path}")).contains("real/deep/file"), "{path}");
    }
    // A link at the end of the path is followed only if a slash is behind it.
    assert!(s.ok(&format!("image ls -l {image} link")).starts_with('l'));
    assert_eq!(s.ok(&format!("image ls {image} link/")), s.ok(&format!("image ls {image} real")));
    for verb in ["ls", "show", "cat"] {
        let ran = s.run(&format!("image {verb} {image} link/deep/file/more"));
        ran.fails(3, "not a directory: /real/deep/file");
        s.run(&format!("image {verb} {image} link/none/more")).fails(3, "link/none/more");
    }
}

/// A directory without search permission gets its mode only when all names of its files are made, in other directories
/// too.
#[test]
fn a_user_extracts_hard_links_to_files_in_directories_without_search_permission() {
    let s = if is_root() { Sandbox::for_user(65534) } else { Sandbox::new() };
    let of = |own: usize| [(".", own, DIRECTORY), ("..", 0, DIRECTORY)];
    // These files keep extraction busy until the directory is finished.
    let between: Vec<_> = (0..99).map(|i| format!("e{i:02}")).collect();
    let between = between.iter().zip(3..).map(|(name, file)| (&**name, file, REGULAR));
    let entries = [("d", 1, DIRECTORY)].into_iter().chain(between).chain([("z", 2, REGULAR)]);
    let root = File::directory(3, &of(0).into_iter().chain(entries).collect::<Vec<_>>());
    let closed = File { mode: 0o040_000, ..File::directory(2, &[&of(1)[..], &[("a", 2, REGULAR)]].concat()) };
    let file = File { nlink: 2, ..File::regular(b"text") };
    let path = s.path("links.img");
    let others = (0..99).map(|_| File::regular(&[b'x'; 4096]));
    let files: Vec<_> = [root, closed, file].into_iter().chain(others).collect();
    std::fs::write(&path, image(&files)).unwrap();
    let out = s.path("out");
    s.ok(&format!("image extract {} {}", path.display(), out.display()));
    assert_eq!(std::fs::read(out.join("z")).unwrap(), b"text");
    assert_eq!(std::fs::metadata(out.join("z")).unwrap().nlink(), 2);
    assert_eq!(std::fs::metadata(out.join("d")).unwrap().mode() & 0o7777, 0);
    // So that the sandbox can be removed.
    std::fs::set_permissions(out.join("d"), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn ls_lists_several_paths_files_first() {
    let s = Sandbox::new();
    let path = s.path("image");
    let of = |own: usize| [(".", own, DIRECTORY), ("..", 0, DIRECTORY)];
    let root = File::directory(
        4,
        &[&of(0)[..], &[("d", 1, DIRECTORY), ("e", 3, DIRECTORY), ("f", 2, REGULAR)]].concat(),
    );
    let d = File::directory(2, &[&of(1)[..], &[("g", 4, REGULAR)]].concat());
    let (f, e, g) = (File::regular(b"text"), File::directory(2, &of(3)), File::regular(b"more"));
    std::fs::write(&path, image(&[root, d, f, e, g])).unwrap();
    let image = path.display();
    assert_eq!(s.ok(&format!("image ls {image} /d /f /e")), "/f\n\n/d:\ng\n\n/e:\n");
    assert_eq!(s.ok(&format!("image ls {image} /d")), "g\n");
    assert_eq!(s.ok(&format!("image ls -R {image} /d /e")), "/d\n/d/g\n/e\n");
    let ran = s.run(&format!("image ls {image} /none /d"));
    assert!(ran.code == 3 && ran.out == "g\n", "{ran:?}");
    let json = s.ok(&format!("image ls --json {image} /d /f"));
    assert_eq!(json.lines().count(), 4, "one file on each line: {json}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let paths: Vec<_> = json["entries"].as_array().unwrap().iter().map(|entry| &entry["path"]).collect();
    assert_eq!(paths, ["/f", "/d/g"]);
}

#[test]
fn exit_codes_tell_a_missing_image_from_a_damaged_one() {
    let s = Sandbox::new();
    let (no_image, at, none) = (s.path("text"), s.path("at"), s.path("none"));
    let good = reference_image("deflate");
    std::fs::write(&no_image, [b'x'; 8192]).unwrap();
    std::fs::create_dir(&at).unwrap();
    let (at, none, no_image, good) = (at.display(), none.display(), no_image.display(), good.display());
    for words in [
        "ls IMAGE",
        "cat IMAGE /f",
        "show IMAGE",
        "tar IMAGE",
        "check IMAGE",
        "extract IMAGE AT",
        "mount IMAGE AT",
    ] {
        let words = format!("image {}", words.replace("AT", &at.to_string()));
        s.run(&words.replace("IMAGE", &none.to_string())).fails(3, "No such file");
        s.run(&words.replace("IMAGE", &format!("{no_image}/none"))).fails(3, "Not a directory");
        s.run(&words.replace("IMAGE", &no_image.to_string())).fails(6, "not an EROFS image");
        s.run(&format!("{} --device {none}", words.replace("IMAGE", &good.to_string())))
            .fails(3, "No such file");
    }
    s.run(&format!("image extract {good} {none}/below")).fails(3, "No such file");
    s.run(&format!("image extract {good} {no_image}")).fails(2, "is not a directory");
    s.run(&format!("image mount {good} {none}")).fails(3, "No such file");
    s.run(&format!("image stats {none}")).fails(3, "no image is mounted");
    s.run(&format!("image unmount {none}")).fails(3, "no image is mounted");
}

#[test]
fn damage_that_a_command_meets_decides_its_exit_code() {
    let s = Sandbox::new();
    let path = s.path("image");
    let root = File::directory(
        2,
        &[
            (".", 0, DIRECTORY),
            ("..", 0, DIRECTORY),
            ("bad", 1, REGULAR),
            ("f", 2, REGULAR),
            ("lost", 9999, REGULAR),
        ],
    );
    let bad = File { size: 1 << 30, ..File::regular(b"short") };
    std::fs::write(&path, image(&[root, bad, File::regular(b"text")])).unwrap();
    let (image, out) = (path.display(), s.path("out"));
    let extract = format!("image extract {image} {}", out.display());
    for words in [
        &format!("image ls {image}"),
        &format!("image cat {image} /bad"),
        &format!("image show {image}"),
        &format!("image tar {image}"),
        &format!("image check {image}"),
        &extract,
    ] {
        assert_eq!(s.command(words).output().unwrap().status.code(), Some(6), "{words}");
    }
    // The rest was done.
    assert_eq!(std::fs::read(out.join("f")).unwrap(), b"text");
    assert!(s.run(&format!("image ls {image}")).out.contains("f\n"));
    let both = s.run(&format!("image cat {image} /bad /f"));
    assert!(both.code == 6 && both.out.ends_with("text"), "{both:?}");
    // A directory without write permission, as an earlier extraction leaves one, is no obstacle for its owner.
    let good = reference_image("deflate");
    if !is_root() {
        let closed = s.path("closed");
        s.ok(&format!("image extract {} {} /small.txt", good.display(), closed.display()));
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
        let ran = s.run(&format!("image extract --overwrite {} {}", good.display(), closed.display()));
        assert!(ran.code == 0 && closed.join("bigdir").is_dir(), "{ran:?}");
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    s.run(&format!("image check -m 4K {}", good.display())).fails(2, "--memory");
    s.run(&format!("image cat {} /bigdir", good.display())).fails(1, "a directory");
}

#[test]
fn help_names_the_counterparts_in_erofs_utils() {
    let s = Sandbox::new();
    for (command, counterpart) in [
        ("mount", "erofsfuse"),
        ("mount", "mount -t erofs"),
        ("mount", "Permission denied"),
        ("extract", "fsck.erofs --extract"),
        ("check", "fsck.erofs"),
        ("show", "dump.erofs"),
        ("ls", "dump.erofs --ls"),
        ("cat", "dump.erofs --cat"),
    ] {
        let help = s.ok(&format!("image {command} --help")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(counterpart), "{counterpart} is not in\n{help}");
    }
}

#[test]
fn an_image_without_its_last_bytes_does_not_pass_the_strict_check() {
    let s = Sandbox::new();
    let (source, image) = (s.path("source"), s.path("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), vec![b'x'; 10_000]).unwrap();
    for words in ["-z none", "-z lz4", "--kernel 6.18 --preset small"] {
        s.ok(&format!("image build -q {words} {} {}", source.display(), image.display()));
        let check = format!("image check --strict {}", image.display());
        s.ok(&check);
        let whole = std::fs::read(&image).unwrap();
        for missing in [1, 511, 512, 4095] {
            std::fs::write(&image, &whole[..whole.len() - missing]).unwrap();
            let run = s.run(&check);
            assert_eq!(run.code, 6, "{words} {missing}: {run:?}");
            // Not even opened, if the root directory is gone.
            let says = run.out.contains("sb-end") || run.err.contains("the image is cut off");
            assert!(says, "{words} {missing}: {run:?}");
        }
    }
}
