//! `image build`: images of directories, from the command line.

use crate::support::{Ran, Sandbox, have};
use pagefold_testkit::skipped;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A sandbox with a directory of a program, a text and a link.
fn sandbox() -> (Sandbox, PathBuf) {
    let s = Sandbox::new();
    let source = s.path("source");
    std::fs::create_dir_all(source.join("bin")).unwrap();
    // Machine code in two segments, which several threads compress.
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    std::fs::write(source.join("bin/program"), &program[..program.len().min(6 << 20)]).unwrap();
    std::fs::write(source.join("text"), "a line of text\n".repeat(10_000)).unwrap();
    std::os::unix::fs::symlink("bin/program", source.join("link")).unwrap();
    (s, source)
}

#[test]
fn an_image_is_built_verified_and_extracted() {
    let (s, source) = sandbox();
    let (image, out) = (s.path("image"), s.path("out"));
    let words = format!("image build --verify --kernel 6.12 {} {}", source.display(), image.display());
    let printed = s.ok(&words);
    // It is built for 6.12, and may need less: the same as `image show` says.
    assert!(printed.contains(", for Linux 6.10 or later\n") && printed.contains("zstd:12"), "{printed}");
    assert!(s.ok(&format!("image show {}", image.display())).contains("Linux 6.10 or later mounts it"));
    assert_eq!(s.ok(&format!("-q {words}")), "");
    let empty = s.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let printed = s.ok(&format!("image build {} {}", empty.display(), s.path("none").display()));
    assert!(printed.contains(" from an empty tree, for Linux"), "{printed}");
    s.ok(&format!("image check {}", image.display()));
    s.ok(&format!("image extract {} {}", image.display(), out.display()));
    assert!(Command::new("diff").arg("-r").args([&source, &out]).status().unwrap().success());
    assert_eq!(std::fs::read_link(out.join("link")).unwrap(), PathBuf::from("bin/program"));
}

/// Which compression it is depends on the machine's kernel; the unit tests have kernels of all kinds.
#[test]
fn the_summary_names_the_running_kernel_and_the_reason() {
    let (s, source) = sandbox();
    let (from, to) = (source.display(), s.path("image"));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let named = format!("the running one, {}", release.trim());
    let printed = s.ok(&format!("image build {from} {}", to.display()));
    let line = printed.lines().find(|line| line.contains(&named)).unwrap_or_else(|| panic!("{printed}"));
    assert!(line.contains("; ") && (printed.contains("zstd:12") || printed.contains("lz4hc:9")), "{printed}");
    let printed = s.ok(&format!("image build -z lz4 {from} {}", to.display()));
    assert!(printed.contains(&named) && !printed.contains("; "), "{printed}");
    let printed = s.ok(&format!("image build --kernel 6.1 {from} {}", to.display()));
    assert!(!printed.contains(&named) && printed.contains("lz4hc:9"), "{printed}");
    let report = s.ok(&format!("image build --json {from} {}", to.display()));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["compression_reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{report}");
    s.run(&format!("image build --kernel 4.19 {from} {}", to.display())).fails(2, "came with 5.4");
}

#[test]
fn auto_stores_plain_what_does_not_compress() {
    let s = Sandbox::new();
    let (source, image) = (s.path("source"), s.path("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), "a line of text\n".repeat(20_000)).unwrap();
    // It becomes 3 % smaller.
    let mut noise = vec![0; 2 << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    noise.iter_mut().for_each(|byte| *byte %= 220);
    std::fs::write(source.join("noise"), &noise).unwrap();
    let built = |options: &str| {
        let words = format!("image build --verify --json {options} {} {}", source.display(), image.display());
        let report: serde_json::Value = serde_json::from_str(&s.ok(&words)).unwrap();
        let stored = report["stored"].as_array().unwrap().iter();
        let names = stored.map(|row| format!("{} {}", row["compression"].as_str().unwrap(), row["files"]));
        (names.collect::<Vec<_>>(), report["compression_reason"].is_string())
    };
    assert_eq!(built("--kernel 6.12").0, ["zstd:12 2"]);
    assert_eq!(built("-z auto --kernel 6.12").0, ["plain 1", "zstd:12 1"]);
    assert_eq!(built("-z auto --preset small --kernel 6.12").0[1..], ["lzma:9 1"]);
    assert_eq!(built("-z auto --rule noise=zstd:1 --kernel 6.12").0, ["zstd:1 1", "zstd:12 1"]);
    assert!(built("-z auto").1 && !built("-z lz4").1, "the reason is that of the default");
    let (from, to) = (source.display(), image.display());
    s.run(&format!("image build --rule *=auto {from} {to}")).fails(2, "unknown compression 'auto'");
    s.run(&format!("image build -z xz {from} {to}")).fails(2, "'auto' chooses for each file");
    s.run(&format!("image build --lz4-window 3K {from} {to}")).fails(2, "3 KiB is too little; from 4 KiB");
}

/// The files of `--sort` in the order of their places in the packed file.
#[test]
fn contents_are_sorted_as_sort_says() {
    let s = Sandbox::new();
    let (source, image) = (s.path("source"), s.path("image"));
    std::fs::create_dir(&source).unwrap();
    let names = ["1.b", "2.a", "3.b"];
    for name in names {
        std::fs::write(source.join(name), format!("contents of {name}\n").repeat(30)).unwrap();
    }
    std::fs::write(s.path("path"), "3.b\n").unwrap();
    std::fs::write(s.path("list"), "# the start\n\n/3.b\n3.b\nnone\n").unwrap();
    let build = |sort: &str| {
        let words =
            format!("image build --json --kernel 6.12 {sort} {} {}", source.display(), image.display());
        let output = s.command(&words).current_dir(s.path("")).output().unwrap();
        let ran = Ran::new(&words, output);
        assert_eq!(ran.code, 0, "{ran:?}");
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let place = |name: &&str| {
            let shown = s.ok(&format!("image show --json {} {name}", image.display()));
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            shown["extents"][0]["packed_offset"].as_u64().unwrap()
        };
        let mut sorted = names;
        sorted.sort_by_key(place);
        (sorted, report["listed"].clone(), std::fs::read(&image).unwrap())
    };
    let (by_similarity, listed, bytes) = build("");
    assert_eq!((by_similarity, listed), (["2.a", "1.b", "3.b"], serde_json::Value::Null));
    assert!(build("--sort similarity").2 == bytes);
    assert_eq!(build("--sort path").0, names);
    let (sorted, listed, _) = build("--sort list");
    assert_eq!((sorted, listed), (["3.b", "2.a", "1.b"], serde_json::json!({"found": 1, "missing": 1})));
    assert_eq!(build("--sort ./path").0, ["3.b", "2.a", "1.b"], "a file that has the name of an order");
    let (from, to, list) = (source.display(), image.display(), s.path("list"));
    let text = s.ok(&format!("image build --kernel 6.12 --sort {} {from} {to}", list.display()));
    assert!(text.contains("1 path of the list found, 1 not"), "{text}");
    s.run(&format!("image build --sort {}/none {from} {to}", from)).fails(3, "or write similarity or path");
    std::fs::File::create(&list).unwrap().set_len((16 << 20) + 1).unwrap();
    s.run(&format!("image build --sort {} {from} {to}", list.display())).fails(2, "more than 16 MiB");
}

#[test]
fn a_preset_chooses_what_no_option_names() {
    let (s, source) = sandbox();
    let compressions = |options: &str| {
        let image = s.path("image");
        let printed = s.ok(&format!("image build --json {options} {} {}", source.display(), image.display()));
        let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
        let stored = report["stored"].as_array().unwrap();
        let names = stored.iter().filter_map(|stored| stored["compression"].as_str());
        names.filter(|name| *name != "plain").map(str::to_owned).collect::<Vec<_>>()
    };
    for (options, compression) in [
        ("--kernel 6.12 --preset fast", "lz4"),
        ("--kernel 6.12 --preset balanced", "zstd:12"),
        ("--kernel 6.12", "zstd:12"),
        ("--kernel 6.12 --preset small", "lzma:9"),
        ("--kernel 6.6 --preset small", "lz4hc:12"),
        ("--kernel 5.4 --preset fast", "lz4"),
        ("--kernel 6.12 --preset small -z zstd:3", "zstd:3"),
    ] {
        assert_eq!(compressions(options), [compression], "{options}");
    }
    s.run(&format!("image build --preset tiny {} x", source.display())).fails(2, "tiny");
}

#[test]
fn many_inodes_are_compressed_where_the_kernel_reads_them() {
    let (s, source) = sandbox();
    for i in 0..1100 {
        std::fs::write(source.join(format!("file-{i}")), format!("{i}")).unwrap();
    }
    let (from, image) = (source.display(), s.path("image"));
    let features = |options: &str| {
        s.ok(&format!("image build -z lz4 --verify {options} {from} {}", image.display()));
        let shown = s.ok(&format!("image show {}", image.display()));
        shown.lines().find(|line| line.trim_start().starts_with("features")).unwrap_or_default().to_string()
    };
    assert!(features("--kernel 6.18 --preset small").contains("metabox"));
    assert!(features("--kernel 6.18 --compressed-metadata").contains("metabox"));
    assert!(!features("--kernel 6.18").contains("metabox"));
    assert!(!features("--kernel 6.18 --preset small --no-compressed-metadata").contains("metabox"));
    assert!(!features("--kernel 6.12 --preset small").contains("metabox"));
    let refused = format!("image build --kernel 6.12 --compressed-metadata {from} {}", image.display());
    s.run(&refused).fails(2, "came with 6.17");
}

#[test]
fn the_same_source_gives_the_same_image() {
    let (s, source) = sandbox();
    let build = |more: &str| {
        let image = s.path("image");
        s.ok(&format!("image build -z lz4 {more} {} {}", source.display(), image.display()));
        std::fs::read(image).unwrap()
    };
    let first = build("--threads 1");
    assert!(first == build("--threads 3"));
    assert!(first != build("--mtime 0") && first != build("--cluster 16K"));
    let command = format!("image build -z lz4 {} {}", source.display(), s.path("dated").display());
    assert!(s.command(&command).env("SOURCE_DATE_EPOCH", "4000000000").status().unwrap().success());
    assert!(first != std::fs::read(s.path("dated")).unwrap());
    for (date, shown) in [("4000000000", "2096-10-02 07:06:40"), ("5", "1970-01-01 00:00:05")] {
        assert!(s.command(&command).env("SOURCE_DATE_EPOCH", date).status().unwrap().success());
        let shows = s.ok(&format!("image show {}", s.path("dated").display()));
        assert!(shows.contains(&format!("{shown} UTC")), "{shows}");
    }
    for bad in [&b"yesterday"[..], b"", b"5\xff"] {
        let bad: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(bad);
        let ran = s.command(&command).env("SOURCE_DATE_EPOCH", bad).output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn an_image_in_its_source_is_not_part_of_itself() {
    let (s, source) = sandbox();
    std::fs::write(source.join("image"), "an older image").unwrap();
    std::os::unix::fs::symlink("image", source.join("to-image")).unwrap();
    for out in ["image", "to-image", "image"] {
        let from_inside = format!("image build -z lz4 {} {}", source.display(), source.join(out).display());
        s.ok(&from_inside);
        let listed = s.ok(&format!("image ls {} /", source.join("image").display()));
        let listed: Vec<_> = listed.split_whitespace().collect();
        assert_eq!(listed, ["bin", "link", "text", "to-image"], "{out}");
    }
}

#[test]
fn directories_on_other_file_systems_stay_empty_if_wanted() {
    let (s, source) = sandbox();
    let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(source.join("bin")).output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        skipped!("directories_on_other_file_systems_stay_empty_if_wanted: a tmpfs cannot be mounted");
        return;
    }
    std::fs::write(source.join("bin/below"), "below").unwrap();
    let built = ["--one-file-system", ""].map(|option| {
        let image = s.path("image");
        let run = s.run(&format!("image build -z lz4 {option} {} {}", source.display(), image.display()));
        (run.code, s.run(&format!("image ls -R {} /", image.display())).out)
    });
    assert!(Command::new("umount").arg(source.join("bin")).status().unwrap().success());
    assert_eq!(built.each_ref().map(|(code, _)| *code), [0, 0]);
    let [without, with] = built.map(|(_, listed)| listed);
    assert!(without.contains("/bin") && !without.contains("below"), "{without}");
    assert!(with.contains("/bin/below"), "{with}");
}

#[test]
fn owners_beyond_the_greatest_number_are_refused() {
    let (s, source) = sandbox();
    let (from, to) = (source.display(), s.path("image"));
    for (offset, owner_fits) in [("70000", true), ("4294967295", false), ("4294967296", false)] {
        let run = s.run(&format!("image build -z lz4 --uid-offset {offset} {from} {}", to.display()));
        match owner_fits {
            true => assert_eq!(run.code, 0, "{offset}"),
            false => run.fails(2, "--uid-offset"),
        }
    }
    // A file that is not in the image does not count.
    let script = "touch a b; tar --owner=4294967290 --numeric-owner -cf a.tar a; tar --owner=0 -rf a.tar b a";
    let made =
        std::process::Command::new("sh").args(["-ec", script]).current_dir(s.path("")).status().unwrap();
    assert!(made.success());
    let archive = s.path("a.tar");
    s.ok(&format!("-q image build --uid-offset 70000 {} {}", archive.display(), s.path("other").display()));
    let owner = std::os::unix::fs::MetadataExt::uid(&source.metadata().unwrap()) + 70_000;
    assert!(s.ok(&format!("image ls -l {} /", to.display())).contains(&format!(" {owner}")));
}

#[test]
fn a_build_that_fails_leaves_what_was_there() {
    let (s, source) = sandbox();
    let image = s.path("image");
    std::fs::write(&image, "before").unwrap();
    let (from, to) = (source.display(), image.display());
    for (words, code, message) in [
        (format!("image build {from}/none {to}"), 3, "none"),
        (format!("image build {from}/text {to}"), 2, "no tar archive"),
        (format!("image build --kernel 5.4 -z zstd {from} {to}"), 2, "does not read zstd"),
        (format!("image build --kernel 5.4 --cluster 64K {from} {to}"), 2, "choose 4K"),
        (format!("image build --kernel six {from} {to}"), 2, "--kernel"),
        (format!("image build -z gzip {from} {to}"), 2, "lz4hc, zstd"),
        (format!("image build --cluster 5000 {from} {to}"), 2, "multiple of 4K"),
        (format!("image build --rule *.so {from} {to}"), 2, "PATTERN=COMPRESSION"),
        (format!("image build --exclude [ {from} {to}"), 2, "--exclude"),
        (format!("image build {from} /dev/null"), 2, "no regular file"),
        (format!("image build {from} -"), 2, "standard output"),
    ] {
        s.run(&words).fails(code, message);
        assert_eq!(std::fs::read(&image).unwrap(), b"before", "{words}");
    }
    let names = std::fs::read_dir(image.parent().unwrap()).unwrap();
    let left = names.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains(".part"));
    assert_eq!(left.count(), 0);
}

/// The names of a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A step of a build on a disk that becomes larger: the run, the names on the disk, and the file.
type Step = (Ran, Vec<String>, Vec<u8>);

/// Runs `words` with a file `image` on a disk of ever more pages until it succeeds. `None`: there can be no such disk.
fn on_growing_disk(s: &Sandbox, disk: &Path, words: &str) -> Option<Vec<Step>> {
    let mount = |options: &str| {
        let run = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(disk).status();
        run.is_ok_and(|status| status.success())
    };
    if !mount("size=4K") {
        return None;
    }
    std::fs::write(disk.join("image"), "before").unwrap();
    let mut steps = Vec::new();
    for pages in 1..100 {
        assert!(mount(&format!("remount,size={}K", pages * 4)));
        let run = s.run(words);
        let is_done = run.code == 0;
        steps.push((run, names(disk), std::fs::read(disk.join("image")).unwrap()));
        if is_done {
            break;
        }
    }
    assert!(Command::new("umount").arg(disk).status().unwrap().success());
    Some(steps)
}

#[test]
fn a_full_disk_leaves_no_half_image() {
    let s = Sandbox::new();
    let (source, disk, archive) = (s.path("source"), s.path("full"), s.path("a.tar.gz"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(source.join("text"), "a line of text\n".repeat(1000)).unwrap();
    std::fs::write(source.join("noise"), (0..9000u32).map(|i| (i * i * 31) as u8).collect::<Vec<_>>())
        .unwrap();
    let tar = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&source).arg(".").status();
    assert!(tar.unwrap().success());
    for (options, source) in [("-z none", &source), ("-z lz4 --verify", &source), ("-z lz4", &archive)] {
        let words =
            |out: &Path| format!("image build --mtime 0 {options} {} {}", source.display(), out.display());
        s.ok(&words(&s.path("wanted")));
        let Some(mut steps) = on_growing_disk(&s, &disk, &words(&disk.join("image"))) else {
            skipped!("a_full_disk_leaves_no_half_image: a tmpfs cannot be mounted");
            return;
        };
        let (_, _, last) = steps.pop().unwrap();
        // No data is stored in another way because there is no space for it.
        assert!(last == std::fs::read(s.path("wanted")).unwrap(), "{options}");
        assert!(!steps.is_empty(), "{options}");
        for (run, left, file) in steps {
            run.fails(1, "No space left");
            run.fails(1, &disk.display().to_string());
            assert!(left == ["image"] && file == b"before", "{options}: {left:?}");
        }
    }
}

#[test]
fn rules_owners_and_json() {
    let (s, source) = sandbox();
    let image = s.path("image");
    let words = format!(
        "image build --json --all-root --mtime 7 -L volume -z lz4 --rule text=deflate:1 --rule bin/*=none {} {}",
        source.display(),
        image.display()
    );
    let report: serde_json::Value = serde_json::from_str(&s.ok(&words)).unwrap();
    let stored = report["stored"].as_array().unwrap();
    let names: Vec<_> = stored.iter().map(|row| row["compression"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "deflate:1"]);
    let [image_bytes, content_bytes] =
        ["image_bytes", "content_bytes"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(image_bytes, std::fs::metadata(&image).unwrap().len());
    // The parser of JSON may round the last digit in another direction.
    let difference = report["ratio"].as_f64().unwrap() - content_bytes as f64 / image_bytes as f64;
    assert!(difference.abs() < 1e-9, "{report}");
    let listed = s.ok(&format!("image ls -l {} /", image.display()));
    assert!(listed.contains("1970-01-01 00:00") && !listed.contains("65534"), "{listed}");
    assert!(s.ok(&format!("image show {}", image.display())).contains("volume"));
}

/// The kernel's reader is another one than ours.
#[test]
fn the_kernel_mounts_images_and_reads_the_same() {
    let (s, source) = sandbox();
    let (image, mnt) = (s.path("image"), s.path("mnt"));
    std::fs::create_dir(&mnt).unwrap();
    for compression in ["none", "lz4", "lz4hc:9", "zstd:3", "deflate:6", "lzma:1"] {
        for cluster in ["4K", "64K"] {
            let (from, to) = (source.display(), image.display());
            s.ok(&format!("image build -z {compression} --cluster {cluster} --kernel 6.12 {from} {to}"));
            let mount =
                Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&image, &mnt]).output();
            if !mount.is_ok_and(|mount| mount.status.success()) {
                skipped!("the_kernel_mounts_images_and_reads_the_same: {compression} cannot be mounted here");
                continue;
            }
            let same = Command::new("diff").arg("-r").args([&source, &mnt]).status().unwrap().success();
            let mapped = !have("filefrag") || maps_all(&mnt);
            assert!(Command::new("umount").arg(&mnt).status().unwrap().success());
            assert!(same && mapped, "{compression}, {cluster}");
        }
    }
}

/// Whether the kernel can tell the extents of the files: it follows the distances of the index then.
fn maps_all(mnt: &std::path::Path) -> bool {
    ["bin/program", "text"].iter().all(|name| {
        let run = Command::new("filefrag").arg("-v").arg(mnt.join(name)).output().unwrap();
        run.status.success() && String::from_utf8_lossy(&run.stdout).contains("eof")
    })
}
