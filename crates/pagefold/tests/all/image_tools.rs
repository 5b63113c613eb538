//! The commands on images, as a user meets them.

use crate::images::handmade::{DIRECTORY, File, REGULAR, image};
use crate::images::reference_image;
use crate::support::{Sandbox, is_root};
use sha2::{Digest, Sha256};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

#[test]
fn list_show_and_cat() {
    let image = reference_image("fragzt");
    let (s, image) = (Sandbox::new(), image.display());
    let names = s.ok(&format!("image list {image}"));
    assert!(names.lines().any(|l| l == "text1m.txt") && !names.contains("file_0000_"), "{names}");
    let long = s.ok(&format!("image list -l {image} /lnk"));
    assert!(
        long.starts_with("lrwxrwxrwx") && long.contains("2023-11-14 22:13:20 /lnk -> small.txt"),
        "{long}"
    );
    let all = s.ok(&format!("image list -R --json {image}"));
    let all: Vec<serde_json::Value> = all.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(all.len(), 1023);
    assert_eq!((&all[0]["path"], &all[0]["kind"]), (&"/".into(), &"directory".into()));
    // Through a link, and a file of several pieces.
    assert_eq!(s.ok(&format!("image cat {image} lnk /small.txt")), "hello world\nhello world\n");
    let output = s.command(&format!("image cat {image} /text1m.txt")).output().unwrap();
    assert_eq!(output.stdout.len(), 1 << 20);
    s.run(&format!("image cat {image} /nosuch")).fails(3, "no such file");
    s.run(&format!("image cat {image} /bigdir")).fails(1, "a directory");
    s.run(&format!("image list {image} /nosuch")).fails(3, "no such file");
    s.run("image list /nonexistent/image").fails(1, "No such file");
    s.run(&format!("image list -m 4K {image}")).fails(2, "--memory");
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
fn a_reader_that_has_enough_is_success() {
    let image = reference_image("zstd");
    let s = Sandbox::new();
    for words in ["image cat IMAGE /zeros.bin", "image list -R IMAGE", "image extract --tar IMAGE"] {
        let words = words.replace("IMAGE", &image.display().to_string());
        let mut child = s.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    }
}

#[test]
fn check_tells_by_its_exit_code() {
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
    ran.fails(1, "wrong with the image");
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["what"].as_str().unwrap().contains("cut off")), "{report}");
    assert_eq!(report["errors"], findings.len() as u64);
    s.run("image check /dev/null").fails(1, "");
}

#[test]
fn extract_makes_what_is_there_and_says_what_is_not() {
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
    for option in ["--overwrite", "--privileged", "-j 2"] {
        s.run(&format!("image extract --tar {option} {image}")).fails(2, "--tar");
    }
    for verb in ["check", "extract"] {
        for jobs in ["0", "257", "100000000000"] {
            s.run(&format!("image {verb} -j {jobs} {image} {}", s.path("never").display()))
                .fails(2, "--jobs");
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
        assert!(s.ok(&format!("image list -l {image} {path}")).contains(" 9 "), "{path}");
        let shown: serde_json::Value =
            serde_json::from_str(&s.ok(&format!("image show --json {image} {path}"))).unwrap();
        assert_eq!(shown["path"], "/real/deep/file", "{path}");
        assert_eq!(s.ok(&format!("image cat {image} {path}")), "contents\n");
        let out = s.path("out");
        s.run(&format!("image extract {image} {} {path}", out.display()));
        assert_eq!(std::fs::read(out.join("real/deep/file")).unwrap(), b"contents\n", "{path}");
        assert!(!out.join("link").exists());
        std::fs::remove_dir_all(&out).unwrap();
        assert!(s.ok(&format!("image extract --tar {image} {path}")).contains("real/deep/file"), "{path}");
    }
    // The last name is left alone, unless a slash is behind it.
    assert!(s.ok(&format!("image list -l {image} link")).starts_with('l'));
    assert_eq!(s.ok(&format!("image list {image} link/")), s.ok(&format!("image list {image} real")));
    for verb in ["list", "show", "cat"] {
        let ran = s.run(&format!("image {verb} {image} link/deep/file/more"));
        ran.fails(1, "not a directory: /real/deep/file");
        s.run(&format!("image {verb} {image} link/none/more")).fails(3, "link/none/more");
    }
}

/// A directory that its owner may not search gets its mode when all names in it are made, further ones of its files
/// included.
#[test]
fn a_user_gets_further_names_of_files_in_closed_directories() {
    let s = if is_root() { Sandbox::for_user(65534) } else { Sandbox::new() };
    let of = |own: usize| [(".", own, DIRECTORY), ("..", 0, DIRECTORY)];
    // The directory is finished while these are made.
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
    // For whoever removes the sandbox.
    std::fs::set_permissions(out.join("d"), std::fs::Permissions::from_mode(0o700)).unwrap();
}
