//! Images whose parts are several objects on servers: an image and its further devices.

use crate::image_digest::mount_sandbox;
use crate::image_remote::server::{Object, Server};
use crate::image_stores::registry::{self, EROFS, IMAGE, Manifests, NAME, descriptor, put_blob};
use crate::image_stores::{ok, run};
use crate::support::Sandbox;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Exit codes of the program.
const USAGE: i32 = 2;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

/// An image with a further device, which mkfs.erofs has made.
fn media() -> [PathBuf; 2] {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    ["blob.erofs", "blob.erofs.device"].map(|name| seeds.join(name))
}

fn serving() -> Server {
    let server = Server::start();
    for (path, name) in media().iter().zip(["/image", "/device"]) {
        server.put(name, Object::new(fs::read(path).unwrap(), "v0"));
    }
    server
}

#[test]
fn every_command_reads_an_image_on_several_servers() {
    let s = Sandbox::new();
    let [image, device] = media().map(|path| path.display().to_string());
    let (first, second) = (serving(), serving());
    let urls = [first.url("/image"), second.url("/device")];
    for words in [
        "image ls -lR IMAGE",
        "image show --json IMAGE",
        "image check --json IMAGE",
        "image tar -o OUT IMAGE",
    ] {
        let words = words.replace("OUT", &s.path("tar").display().to_string());
        let of = |media: [&str; 2]| words.replace("IMAGE", &format!("{} --device {}", media[0], media[1]));
        let local = s.ok(&of([&image, &device]));
        let tar = fs::read(s.path("tar")).ok();
        assert_eq!(ok(&s, &of([&urls[0], &urls[1]]), &[]), local, "{words}");
        assert_eq!(ok(&s, &of([&image, &urls[1]]), &[]), local, "{words}");
        assert!(fs::read(s.path("tar")).ok() == tar);
    }
    for (n, media) in [[&image, &device], [&urls[0], &urls[1]]].into_iter().enumerate() {
        let out = s.path(&format!("out{n}"));
        ok(&s, &format!("-q image extract {} --device {} {}", media[0], media[1], out.display()), &[]);
    }
    let (local, far) = (s.path("out0"), s.path("out1"));
    let files = files_below(&local);
    assert!(!files.is_empty() && files.len() == files_below(&far).len());
    for path in files {
        let other = far.join(path.strip_prefix(&local).unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap(), "{}", path.display());
    }
    for (server, path) in [(&first, "/image"), (&second, "/device")] {
        let log = server.take_log();
        assert!(!log.is_empty() && log.iter().all(|request| request.path == path));
    }
    run(&s, &format!("image ls {}", urls[0]), &[]).fails(USAGE, "--device");
}

/// Each blob has its own digest.
#[test]
fn devices_in_registries_are_compared_with_their_digests() {
    let s = Sandbox::new();
    let blobs = media().map(|path| fs::read(path).unwrap());
    let (server, mut manifests) = (Server::start(), Manifests::default());
    for (blob, tag) in blobs.iter().zip(["image", "device"]) {
        put_blob(&server, blob);
        manifests.add(tag, IMAGE, &registry::image(&[descriptor(EROFS, blob, "")]));
    }
    server.fail(move |request| manifests.answer(request));
    let name = |tag: &str| format!("oci://{}/{NAME}:{tag}", server.address);
    let check = format!("image check {} --device {}", name("image"), name("device"));
    ok(&s, &check, &[]);
    let [_, device] = &blobs;
    let mut wrong = device.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let path = format!("/v2/{NAME}/blobs/{}", registry::digest(device));
    server.put(&path, Object { bytes: Arc::new(wrong), etag: None, last_modified: None });
    run(&s, &check, &[]).fails(DAMAGED, "another digest");
}

/// Each object has its own version: a device without one is refused, though the image has one.
#[test]
fn a_mount_reads_devices_on_servers_and_each_needs_a_version() {
    let Some(s) = mount_sandbox("a_mount_reads_devices_on_servers_and_each_needs_a_version") else { return };
    let server = serving();
    let (media, out) = (media(), s.inner.path("out"));
    let [image, device] = ["/image", "/device"].map(|path| server.url(path));
    let local = media.map(|path| path.display().to_string());
    ok(&s.inner, &format!("-q image extract {} --device {} {}", local[0], local[1], out.display()), &[]);
    let mount = format!("image mount {image} --device {device} {} --timeout 5s", s.at.display());
    ok(&s.inner, &mount, &[]);
    let files = files_below(&out);
    assert!(!files.is_empty());
    for path in files {
        let mounted = s.at.join(path.strip_prefix(&out).unwrap());
        assert!(fs::read(&mounted).unwrap() == fs::read(&path).unwrap(), "{}", mounted.display());
    }
    ok(&s.inner, &format!("image unmount {}", s.at.display()), &[]);
    s.assert_nothing_left();
    let bytes = fs::read(&local[1]).unwrap();
    server.put("/device", Object { bytes: Arc::new(bytes), etag: None, last_modified: None });
    let ran = run(&s.inner, &mount, &[]);
    assert!(ran.err.contains("/device': the server does not say which version"), "{ran:?}");
    ran.fails(UNAVAILABLE, "opening");
}

/// The regular files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files.extend(files_below(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
