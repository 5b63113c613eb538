//! Confinement: images whose bytes make a decoder with a planted hole do what an attacker wishes.
//!
//! The program that tests run has the hole (the feature `planted-hole` of the codecs), the one that people get has not.

use crate::image_mount::{MountSandbox, fetcher, server, wait_until};
use crate::image_remote::{PATH, serving};
use crate::support::Sandbox;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The length of a file with a wish: one cluster.
const FILE_BYTES: usize = 64 << 10;

/// Builds an image whose files wish, and returns it. The wish is at the beginning of the only cluster of a file, as LZ4
/// literals.
fn image_of(sandbox: &MountSandbox, wishes: &[String]) -> PathBuf {
    let tree = sandbox.inner.path("wishes");
    fs::create_dir_all(&tree).unwrap();
    for (n, wish) in wishes.iter().enumerate() {
        let mut text = planted(wish);
        text.resize(FILE_BYTES, b'.');
        fs::write(tree.join(n.to_string()), text).unwrap();
    }
    let image = sandbox.inner.path("hostile");
    let made = Command::new("mkfs.erofs").args(["-zlz4", "-C65536"]).arg(&image).arg(&tree).output();
    assert!(made.unwrap().status.success());
    image
}

/// The bytes with which the hole carries out a wish.
pub fn planted(wish: &str) -> Vec<u8> {
    let mark: String = " :ELOH DETNALP".chars().rev().collect();
    format!("{mark}{wish}\n").into_bytes()
}

/// The answers of the hole, of a program that prints or mounts.
fn answer_in(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().to_string()
}

/// Things that an attacker wants as root, without harm if they are granted.
pub struct Wishes {
    pub list: Vec<String>,
    _tcp: TcpListener,
    _unix: UnixListener,
}

impl Wishes {
    pub fn new(sandbox: &Sandbox) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = sandbox.path("socket");
        let unix = UnixListener::bind(&path).unwrap();
        let secret = sandbox.path("secret");
        fs::write(&secret, "secret").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let point = sandbox.path("point");
        fs::create_dir(&point).unwrap();
        fs::create_dir_all(sandbox.path("wishes")).unwrap();
        let this = std::process::id();
        let list = [
            "read /etc/shadow".to_string(),
            format!("read {}", secret.display()),
            format!("write {}", secret.display()),
            format!("write {}", sandbox.path("new").display()),
            format!("chmod {}", sandbox.path("wishes").display()),
            format!("trace {this}"),
            format!("signal {this}"),
            format!("tcp {}", tcp.local_addr().unwrap()),
            format!("unix {}", path.display()),
            "exec /bin/true".to_string(),
            format!("mount {}", point.display()),
        ];
        Wishes { list: list.to_vec(), _tcp: tcp, _unix: unix }
    }
}

pub fn unmount_point(sandbox: &Sandbox) {
    let _ = rustix::mount::unmount(sandbox.path("point"), rustix::mount::UnmountFlags::DETACH);
}

#[test]
fn a_hole_in_a_decoder_of_a_mount_gives_an_attacker_nothing() {
    let test = "a_hole_in_a_decoder_of_a_mount_gives_an_attacker_nothing";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let wishes = Wishes::new(&sandbox.inner);
    let image = image_of(&sandbox, &wishes.list);
    grant_nothing_by_mounts(&sandbox, &wishes, &image.display().to_string());
}

#[test]
fn a_hole_in_a_decoder_of_a_mount_gives_nothing_if_the_image_is_on_a_server_too() {
    let test = "a_hole_in_a_decoder_of_a_mount_gives_nothing_if_the_image_is_on_a_server_too";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let mut wishes = Wishes::new(&sandbox.inner);
    // A server that is killed again and again takes long: one such wish stands for the others.
    wishes.list.retain(|wish| !["signal", "unix", "mount"].iter().any(|verb| wish.starts_with(verb)));
    let on_server = serving(&image_of(&sandbox, &wishes.list));
    grant_nothing_by_mounts(&sandbox, &wishes, &on_server.url(PATH));
}

/// Mounts the image of these wishes without the wall and with it, and reads all files.
fn grant_nothing_by_mounts(sandbox: &MountSandbox, wishes: &Wishes, image: &str) {
    let mount = format!("image mount {image} {}", sandbox.at.display());
    let read = |n: usize| fs::read(sandbox.at.join(n.to_string())).map(|bytes| answer_in(&bytes));

    // Without the wall, root's wishes are granted: the hole is one.
    let output = sandbox.inner.command(&mount).env("PAGEFOLD_CONFINEMENT", "off").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stats = sandbox.stats();
    assert!(stats["confinement"]["missing"][0].as_str().unwrap().contains("PAGEFOLD_CONFINEMENT=off"));
    for (n, wish) in wishes.list.iter().enumerate() {
        let answer = read(n).unwrap();
        // Capabilities are gone even so: it cannot mount, nor trace a process that has some.
        let needs_capability = wish.starts_with("mount") || wish.starts_with("trace");
        assert!(answer == "granted" || needs_capability, "{wish}: {answer}");
    }
    sandbox.ok(&sandbox.words("unmount", ""));
    unmount_point(&sandbox.inner);
    let _ = fs::remove_file(sandbox.inner.path("new"));

    sandbox.ok(&mount);
    let confinement = &sandbox.stats()["confinement"];
    let all = ["files", "system_calls"].iter().all(|part| confinement[part] == true);
    assert!(all && confinement["user"].as_u64().is_some_and(|user| user != 0), "{confinement}");
    for (n, wish) in wishes.list.iter().enumerate() {
        let former = server(sandbox);
        let is_deadly = ["signal", "tcp", "unix", "mount"].iter().any(|verb| wish.starts_with(verb));
        if !is_deadly {
            let answer = read(n).unwrap();
            assert!(answer.starts_with("refused"), "{wish}: {answer}");
            continue;
        }
        // The server is killed each time that the kernel gives the request to the next one, until it is held.
        let path = sandbox.at.join(n.to_string());
        // Another process: a child of this one that closes the file, before it runs a program, would wait for the mount.
        let mut reader =
            Command::new("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(|| log(sandbox).contains("signal 31 killed it: a forbidden system call"));
        wait_until(|| {
            let (code, said) = sandbox.run(&sandbox.words("stats", "--json"));
            code != 0 || !said.contains(&format!("\"pid\": {},", former.as_raw_nonzero()))
        });
        sandbox.ok(&sandbox.words("unmount", "--force"));
        assert!(!reader.wait().unwrap().success(), "{wish}");
        sandbox.assert_nothing_left();
        sandbox.ok(&mount);
    }
    assert!(!sandbox.inner.path("new").exists());
    sandbox.ok(&sandbox.words("unmount", ""));
}

fn log(sandbox: &MountSandbox) -> String {
    let folder = sandbox.inner.runtime().join(".images");
    let logs = fs::read_dir(folder).unwrap().filter_map(|entry| {
        let path: PathBuf = entry.unwrap().path();
        fs::read_to_string(Path::new(&path).join("log")).ok()
    });
    logs.collect()
}

#[test]
fn a_hole_in_a_decoder_of_a_command_that_prints_gives_an_attacker_nothing() {
    let test = "a_hole_in_a_decoder_of_a_command_that_prints_gives_an_attacker_nothing";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let wishes = Wishes::new(&sandbox.inner);
    let image = image_of(&sandbox, &wishes.list);
    let on_server = serving(&image);
    let places = [image.display().to_string(), on_server.url(PATH)];
    let wishes =
        places.iter().flat_map(|place| wishes.list.iter().enumerate().map(move |wish| (place, wish)));
    for (place, (n, wish)) in wishes {
        let cat = format!("image cat {place} /{n}");
        let free = sandbox.inner.command(&cat).env("PAGEFOLD_CONFINEMENT", "off").output().unwrap();
        let answer = answer_in(&free.stdout);
        assert_eq!(answer, "granted", "{wish} of {place}");
        unmount_point(&sandbox.inner);
        let _ = fs::remove_file(sandbox.inner.path("new"));
        let confined = sandbox.inner.command(&cat).output().unwrap();
        let answer = answer_in(&confined.stdout);
        let was_killed =
            std::os::unix::process::ExitStatusExt::signal(&confined.status) == Some(libc::SIGSYS);
        assert!(answer.starts_with("refused") || was_killed, "{wish} of {place}: {answer}, {confined:?}");
        assert!(!sandbox.inner.path("new").exists());
    }
}

/// Runs a command on a hostile image with a fault in its decoder. Returns its exit code, and what it said on standard error.
fn run(sandbox: &MountSandbox, words: &str, is_confined: bool) -> (Option<i32>, String) {
    let mut command = sandbox.inner.command(words);
    if !is_confined {
        command.env("PAGEFOLD_CONFINEMENT", "off");
    }
    let output = command.output().unwrap();
    unmount_point(&sandbox.inner);
    let is_written = fs::remove_file(sandbox.inner.path("new")).is_ok();
    assert!(!(is_confined && is_written), "{words}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn was_killed((code, said): &(Option<i32>, String)) -> bool {
    *code == Some(1) && said.contains("was killed by signal 31: a forbidden system call")
}

#[test]
fn a_hole_in_a_decoder_of_extract_gives_an_attacker_nothing_outside_of_the_directory() {
    let test = "a_hole_in_a_decoder_of_extract_gives_an_attacker_nothing_outside_of_the_directory";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let Wishes { mut list, _tcp, _unix } = Wishes::new(&sandbox.inner);
    let dir = sandbox.inner.path("target");
    // Wishes inside of the directory, by the path that it has without the wall, and as the root. No word is there twice: LZ4
    // would store that as a match.
    for (verb, name) in [("device", "null"), ("setid", "file")] {
        list.push(format!("{verb} {}/{name}", dir.display()));
        list.push(format!("{verb} /{name}"));
    }
    // Descriptors.
    list.extend(["touch /proc/self/fd/".to_string(), "touch ./".to_string()]);
    let image = image_of(&sandbox, &list);
    for option in ["", "--privileged"] {
        for (n, wish) in list.iter().enumerate() {
            let words = format!("image extract {option} {} {} /{n}", image.display(), dir.display());
            let answer = |is_confined| {
                let _ = fs::remove_dir_all(&dir);
                let ran = run(&sandbox, &words, is_confined);
                let read = fs::read(dir.join(n.to_string()));
                (read.map(|bytes| answer_in(&bytes)).unwrap_or_default(), ran)
            };
            let is_inside = wish.starts_with("device") || wish.starts_with("setid");
            let is_of_root = [" /null", " /file", "./"].iter().any(|end| wish.ends_with(end));
            if !is_of_root {
                assert_eq!(answer(false).0, "granted", "{wish}");
            }
            let (answer, ran) = answer(true);
            // Files in the directory are what an image says with this option.
            let is_allowed = option == "--privileged" && wish == "setid /file";
            let is_refused = answer.starts_with("refused") || was_killed(&ran);
            assert!(
                if is_allowed { answer == "granted" } else { is_refused },
                "{words}: {wish}: {answer}, {ran:?}"
            );
            let leftover = is_inside
                && fs::metadata(dir.join("file")).is_ok_and(|made| made.permissions().mode() & 0o6000 != 0);
            assert_eq!(leftover, is_allowed, "{wish}");
        }
    }
    let wishes = sandbox.inner.path("wishes").metadata().unwrap();
    assert!(wishes.permissions().mode() & 0o777 == 0o777, "the wish without the wall was granted");
    fs::set_permissions(sandbox.inner.path("wishes"), PermissionsExt::from_mode(0o700)).unwrap();
    let chmod = list.iter().position(|wish| wish.starts_with("chmod")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    run(&sandbox, &format!("image extract {} {} /{chmod}", image.display(), dir.display()), true);
    let wishes = sandbox.inner.path("wishes").metadata().unwrap();
    assert_eq!(wishes.permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_hole_in_a_decoder_of_a_command_that_writes_a_file_gives_an_attacker_nothing() {
    let test = "a_hole_in_a_decoder_of_a_command_that_writes_a_file_gives_an_attacker_nothing";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let wishes = Wishes::new(&sandbox.inner);
    let out = sandbox.inner.path("out");
    let has = |text: &str| {
        let written = fs::read(&out).unwrap_or_default();
        written.windows(text.len()).any(|window| window == text.as_bytes())
    };
    for wish in &wishes.list {
        let image = image_of(&sandbox, std::slice::from_ref(wish));
        let (image, file) = (image.display(), out.display());
        for words in [format!("image tar {image} -o {file}"), format!("image build -z none {image} {file}")] {
            let _ = fs::remove_file(&out);
            run(&sandbox, &words, false);
            assert!(has("granted\n"), "{words}: {wish}");
            fs::write(&out, "before").unwrap();
            let ran = run(&sandbox, &words, true);
            assert!(has("refused ") || was_killed(&ran) && has("before"), "{words}: {wish}: {ran:?}");
            let is_hidden = |entry: std::io::Result<fs::DirEntry>| {
                entry.unwrap().file_name().to_string_lossy().starts_with(".pagefold-")
            };
            assert!(!fs::read_dir(out.parent().unwrap()).unwrap().any(is_hidden), "{words}: {wish}");
        }
    }
}

/// A line of `/proc/PID/status`.
fn status_of(pid: i32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_string()
}

#[test]
fn a_server_of_an_image_on_a_server_is_confined_and_its_fetcher_has_no_capabilities() {
    let test = "a_server_of_an_image_on_a_server_is_confined_and_its_fetcher_has_no_capabilities";
    let Some(sandbox) = MountSandbox::new(test) else { return };
    let on_server = serving(&sandbox.image);
    sandbox.ok(&format!("image mount {} {}", on_server.url(PATH), sandbox.at.display()));
    let (pid, fetcher) = (server(&sandbox), fetcher(&sandbox));
    for pid in [pid, fetcher].map(|pid| pid.as_raw_nonzero().get()) {
        for field in ["CapEff", "CapPrm", "CapInh"] {
            assert_eq!(status_of(pid, field), "0000000000000000", "{field}");
        }
        assert_eq!(status_of(pid, "NoNewPrivs"), "1");
    }
    let of_server = |field| status_of(pid.as_raw_nonzero().get(), field);
    assert_eq!(of_server("Seccomp"), "2");
    assert!(!of_server("Uid").starts_with("0\t"), "{}", of_server("Uid"));
    let sockets = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let inodes: Vec<String> =
        sockets.map(|fd| fs::read_link(fd.unwrap().path()).unwrap().display().to_string()).collect();
    // It has no connection to another machine.
    let tcp = fs::read_to_string("/proc/net/tcp").unwrap();
    let is_tcp = |link: &String| {
        let number = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        number.is_some_and(|number| tcp.split_ascii_whitespace().any(|word| word == number))
    };
    assert_eq!(inodes.iter().find(|link| is_tcp(link)), None);
    assert!(!sandbox.stats()["remote"]["requests"].is_null());
    sandbox.ok(&sandbox.words("unmount", ""));
    sandbox.assert_nothing_left();
    wait_until(|| !Path::new(&format!("/proc/{}", fetcher.as_raw_nonzero())).exists());
}
