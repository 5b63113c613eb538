//! The cache of remote images on disk, by commands and mounts.

#[path = "../../../remote/tests/support/cache_checker.rs"]
mod cache_checker;

use crate::image_digest::mount_sandbox;
use crate::image_mount::{MountSandbox, kill};
use crate::image_remote::server::{Fault, Object, Server};
use crate::image_remote::{PATH, command, ok, run, serving};
use crate::support::{Sandbox, wait_until};
use cache_checker::check;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

/// Exit codes of the program.
const USAGE: i32 = 2;
const BUSY: i32 = 4;
/// Bytes of a block of the cache.
const BLOCK: u64 = 32 << 10;

/// An image with a file `noise` of this length, which does not compress.
fn noisy_image(s: &Sandbox, len_bytes: usize) -> PathBuf {
    let (tree, image) = (s.path("tree"), s.path("image"));
    fs::create_dir_all(&tree).unwrap();
    let mut state = 7_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    fs::write(tree.join("noise"), noise.take(len_bytes).collect::<Vec<_>>()).unwrap();
    s.ok(&format!("-q image build {} {} --compression none", tree.display(), image.display()));
    image
}

/// A mount's sandbox with a server of an image of 6 MB.
fn rig(test: &str) -> Option<(MountSandbox, Server)> {
    let s = mount_sandbox(test)?;
    noisy_image(&s.inner, 6_000_000);
    let server = serving(&s.image);
    Some((s, server))
}

fn cache(s: &Sandbox) -> PathBuf {
    s.path("cache")
}

fn mount(s: &MountSandbox, server: &Server, more: &str) {
    let cache = cache(&s.inner);
    let words = format!(
        "image mount {}?X-Amz-Signature=abc {} --cache {}",
        server.url(PATH),
        s.at.display(),
        cache.display()
    );
    ok(&s.inner, &format!("{words} --timeout 5s {more}"));
}

fn noise(s: &MountSandbox) -> Vec<u8> {
    fs::read(s.inner.path("tree/noise")).unwrap()
}

/// Unmounts. A process that another test starts at this moment has the files of this one open until it runs its program.
fn unmount(s: &MountSandbox) {
    wait_until("the image is unmounted", || match run(&s.inner, &s.words("unmount", "")) {
        ran if ran.code == BUSY => false,
        ran => ran.code == 0 || panic!("{ran:?}"),
    });
    s.assert_nothing_left();
}

fn reads_right(s: &MountSandbox) {
    assert!(fs::read(s.at.join("noise")).unwrap() == noise(s));
}

#[test]
fn commands_share_a_cache_and_a_second_one_asks_once() {
    let s = Sandbox::new();
    let image = noisy_image(&s, 1_000_000);
    let server = serving(&image);
    let cat = format!("image cat {} /noise", server.url(PATH));
    let with_cache = |words: &str| {
        let mut command = command(&s, words);
        command.env("PAGEFOLD_CACHE_DIR", cache(&s));
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(output.stdout == fs::read(s.path("tree/noise")).unwrap());
        server.take_log().len()
    };
    assert!(with_cache(&cat) > 1);
    assert_eq!(with_cache(&cat), 1);
    assert!(with_cache(&format!("{cat} --no-cache")) > 1);
    assert_eq!(
        check(&cache(&s), &fs::read(&image).unwrap()) as u64,
        fs::metadata(&image).unwrap().len().div_ceil(BLOCK)
    );
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&cache(&s)), 0o700);
    for entry in fs::read_dir(cache(&s)).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    // A folder that the option names comes before that of the variable.
    let other = s.path("a/b");
    assert!(with_cache(&format!("{cat} --cache {}", other.display())) > 1);
    assert_eq!(with_cache(&format!("{cat} --cache {}", other.display())), 1);
    run(&s, &format!("{cat} --cache-size 1M")).fails(USAGE, "--cache-size is at least 16M");
    run(&s, &format!("{cat} --no-cache --cache x")).fails(USAGE, "cannot be used with");
}

#[test]
fn a_folder_that_cannot_be_used_is_reported_and_costs_nothing_else() {
    let Some((s, server)) = rig("a_folder_that_cannot_be_used_is_reported_and_costs_nothing_else") else {
        return;
    };
    fs::write(cache(&s.inner), "a file").unwrap();
    let ran = run(&s.inner, &format!("image ls {} --cache {}", server.url(PATH), cache(&s.inner).display()));
    assert!(ran.code == 0 && ran.err.contains("note: remote images are not cached: making"), "{ran:?}");
    mount(&s, &server, "");
    reads_right(&s);
    let stats = s.stats();
    assert!(stats["remote"]["cache"]["error"].as_str().unwrap().contains("not cached"), "{stats}");
    assert!(s.ok(&s.words("stats", "")).contains("cache fails"));
    unmount(&s);
}

#[test]
fn a_second_mount_asks_once_and_reports_what_the_cache_had() {
    let Some((s, server)) = rig("a_second_mount_asks_once_and_reports_what_the_cache_had") else { return };
    mount(&s, &server, "--no-readahead");
    reads_right(&s);
    let first = &s.stats()["remote"]["cache"];
    assert!(first["written_bytes"].as_u64() > Some(6_000_000) && first["error"].is_null(), "{first}");
    assert_eq!((&first["hit_bytes"], &first["size_bytes"]), (&0.into(), &(10_u64 << 30).into()));
    unmount(&s);
    server.take_log();

    mount(&s, &server, "--no-readahead");
    reads_right(&s);
    assert_eq!(server.take_log().len(), 1);
    let stats = s.stats();
    let second = &stats["remote"]["cache"];
    assert_eq!(stats["remote"]["requests"], 1);
    assert!(second["hit_bytes"].as_u64() > Some(5_900_000) && second["written_bytes"] == 0, "{second}");
    assert!(second["used_bytes"].as_u64() > Some(6_000_000) && second["refused_blocks"] == 0, "{second}");
    let text = s.ok(&s.words("stats", ""));
    assert!(text.contains("cache on disk") && text.contains("10 GiB used"), "{text}");
    // Neither a name nor the contents of a file of the cache have the query of the URL.
    let found =
        std::process::Command::new("grep").args(["-rl", "X-Amz-Signature=abc"]).arg(cache(&s.inner)).output();
    assert!(found.unwrap().stdout.is_empty());
    unmount(&s);
}

/// The server of a mount keeps no privileges, and the command passes it the path of the folder in its configuration.
#[test]
fn a_users_mount_caches_in_the_home_folder() {
    let Some(s) = MountSandbox::for_user("a_users_mount_caches_in_the_home_folder") else { return };
    let server = serving(&s.image);
    let home = s.inner.path("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(1000), Some(1000)).unwrap();
    let words = format!("image mount {} {} --timeout 5s --no-readahead", server.url(PATH), s.at.display());
    for round in 0..2 {
        server.take_log();
        let mut command = command(&s.inner, &words);
        command.env_remove("PAGEFOLD_CACHE_DIR").env_remove("XDG_CACHE_HOME").env("HOME", &home);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let path = s.at.join("long");
        let read = format!("cat {} | wc -c", path.display());
        let mut shell = std::process::Command::new("sh");
        shell.uid(1000).gid(1000);
        let output = shell.args(["-c", &read]).output().unwrap();
        let expected = crate::image_mount::contents().len().to_string();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{output:?}");
        assert_eq!(server.take_log().len() == 1, round == 1);
        unmount(&s);
    }
    assert!(check(&home.join(".cache/pagefold"), &fs::read(&s.image).unwrap()) > 1);
}

#[test]
fn two_mounts_fetch_each_block_once() {
    let Some((s, server)) = rig("two_mounts_fetch_each_block_once") else { return };
    server.fail(|_| Fault::Late(Duration::from_millis(5)));
    mount(&s, &server, "--no-readahead");
    let second = MountSandbox { inner: Sandbox::new(), image: s.image.clone(), at: s.inner.path("at2") };
    fs::create_dir(&second.at).unwrap();
    let words = format!(
        "image mount {} {} --cache {}",
        server.url(PATH),
        second.at.display(),
        cache(&s.inner).display()
    );
    ok(&second.inner, &format!("{words} --no-readahead"));
    std::thread::scope(|scope| {
        for at in [&s.at, &second.at] {
            scope.spawn(|| assert!(fs::read(at.join("noise")).unwrap() == noise(&s)));
        }
    });
    let ranges = server.take_log();
    let blocks =
        ranges.iter().filter_map(|request| request.range()).map(|(first, last)| (last - first) / BLOCK + 1);
    let all = fs::metadata(&s.image).unwrap().len().div_ceil(BLOCK);
    // The first block of each mount is the answer that names the version.
    let asked: u64 = blocks.sum();
    assert!(asked <= all + 1, "{asked} blocks of {all}");
    unmount(&second);
    unmount(&s);
}

/// The digest of the image, whose tree is on the server.
fn digest(s: &MountSandbox, server: &Server) -> String {
    let digest = s.ok(&format!("image digest {}", s.image.display()));
    server.put("/app.erofs.verity", Object::new(fs::read(s.inner.path("image.verity")).unwrap(), "t0"));
    format!("--digest {}", digest.trim())
}

#[test]
fn with_a_digest_a_cached_image_is_mounted_without_its_server() {
    let Some((s, server)) = rig("with_a_digest_a_cached_image_is_mounted_without_its_server") else { return };
    let digest = digest(&s, &server) + " --no-readahead";
    mount(&s, &server, &digest);
    reads_right(&s);
    unmount(&s);
    server.take_log();
    server.fail(|_| Fault::Hangup);
    mount(&s, &server, &digest);
    reads_right(&s);
    assert_eq!(server.take_log().len(), 0);
    unmount(&s);
}

/// Bytes that another process put into the cache, with checksums that fit: a digest shows that they are wrong.
#[test]
fn forged_blocks_cost_requests_if_there_is_a_digest() {
    let Some((s, server)) = rig("forged_blocks_cost_requests_if_there_is_a_digest") else { return };
    let digest = digest(&s, &server);
    // A server with wrong bytes at all places: they are cached, and reading fails.
    let right = fs::read(&s.image).unwrap();
    let tree = fs::read(s.inner.path("image.verity")).unwrap();
    let wrong = |bytes: &[u8]| bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>();
    let check_words = |more: &str| {
        format!("image check {} --cache {} {digest} {more}", server.url(PATH), cache(&s.inner).display())
    };
    server.put(PATH, Object::new(wrong(&right), "w0"));
    assert_ne!(run(&s.inner, &check_words("")).code, 0);
    // A server with a wrong tree.
    server.put("/app.erofs.verity", Object::new(wrong(&tree), "w0"));
    assert_ne!(run(&s.inner, &check_words("")).code, 0);
    // One whose tree and image have another length.
    server.put("/app.erofs.verity", Object::new(tree[..4096].to_vec(), "w1"));
    server.put(PATH, Object::new(right[..1_000_000].to_vec(), "w1"));
    assert_ne!(run(&s.inner, &check_words("")).code, 0);

    server.put(PATH, Object::new(right, "v0"));
    server.put("/app.erofs.verity", Object::new(tree, "t0"));
    mount(&s, &server, &digest);
    reads_right(&s);
    unmount(&s);
    // All is right, once all has been read.
    ok(&s.inner, &check_words(""));
    server.fail(|_| Fault::Hangup);
    ok(&s.inner, &check_words(""));
}

#[test]
fn blocks_that_a_wrong_server_left_are_fetched_again() {
    let Some((s, server)) = rig("blocks_that_a_wrong_server_left_are_fetched_again") else { return };
    let digest = digest(&s, &server);
    let right = fs::read(&s.image).unwrap();
    let mut wrong = right.clone();
    wrong[3_000_000] ^= 1;
    server.put(PATH, Object::new(wrong, "w0"));
    mount(&s, &server, &digest);
    assert_eq!(fs::read(s.at.join("noise")).unwrap_err().raw_os_error(), Some(libc::EIO));
    unmount(&s);
    server.put(PATH, Object::new(right, "v0"));
    mount(&s, &server, &digest);
    reads_right(&s);
    unmount(&s);
}

#[test]
fn a_cache_smaller_than_the_image_works() {
    let s = Sandbox::new();
    let image = noisy_image(&s, 40_000_000);
    let server = serving(&image);
    for _ in 0..2 {
        let cat = format!("image cat {} /noise --cache {}", server.url(PATH), cache(&s).display());
        let output = command(&s, &format!("{cat} --cache-size 16M")).output().unwrap();
        assert!(output.stdout == fs::read(s.path("tree/noise")).unwrap(), "{:?}", output.stderr);
        use std::os::unix::fs::MetadataExt;
        let used =
            fs::read_dir(cache(&s)).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512);
        let used: u64 = used.sum();
        assert!(used <= 16 << 20 && used > 8 << 20, "{used} bytes");
        assert!(check(&cache(&s), &fs::read(&image).unwrap()) > 100);
    }
}

#[test]
fn a_limit_of_the_length_of_files_costs_requests_and_says_so_once() {
    let s = Sandbox::new();
    let image = noisy_image(&s, 1_000_000);
    let server = serving(&image);
    let program = env!("CARGO_BIN_EXE_pagefold");
    let cat = format!("{program} image cat {} /noise --cache {}", server.url(PATH), cache(&s).display());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit -f 600; {cat} | cat")]).env("NO_PROXY", "*");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout == fs::read(s.path("tree/noise")).unwrap(), "{said}");
    assert!(
        said.contains("note: the cache of remote images cannot be written now")
            && said.contains("File too large"),
        "{said}"
    );
    assert_eq!(said.lines().filter(|line| line.contains("note:")).count(), 1);
    check(&cache(&s), &fs::read(&image).unwrap());
}

/// The number of servers that are killed: `PAGEFOLD_CACHE_KILLS`, or a few; more if `PAGEFOLD_FULL` is set.
fn kills() -> u64 {
    let default = if std::env::var_os("PAGEFOLD_FULL").is_some() { 30 } else { 4 };
    std::env::var("PAGEFOLD_CACHE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn servers_that_are_killed_leave_a_cache_that_is_never_wrong() {
    let test = "servers_that_are_killed_leave_a_cache_that_is_never_wrong";
    let Some((s, server)) = rig(test) else { return };
    let source = fs::read(&s.image).unwrap();
    let mut seed = 1_u64;
    for round in 0..kills() {
        if round % 3 == 0 {
            let _ = fs::remove_dir_all(cache(&s.inner));
        }
        mount(&s, &server, "");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It fails when the server is killed.
                let Ok(file) = fs::File::open(s.at.join("noise")) else { return };
                let mut buf = vec![0; 100_000];
                for at in (0..5_900_000).step_by(buf.len()) {
                    if file.read_exact_at(&mut buf, at).is_err() {
                        return;
                    }
                }
            });
            std::thread::sleep(Duration::from_micros((seed >> 33) % 30_000));
            kill(&s);
        });
        check(&cache(&s.inner), &source);
        unmount(&s);
    }
    mount(&s, &server, "");
    reads_right(&s);
    assert!(check(&cache(&s.inner), &source) > 80);
    unmount(&s);
}
