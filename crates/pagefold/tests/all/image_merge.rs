//! Images of several layers: in files, and in registries.

use crate::image_remote::server::Server;
use crate::image_stores::registry::{
    EROFS, IMAGE, INDEX, Manifests, NAME, descriptor, digest, index, put_blob,
};
use crate::image_stores::{command, ok, run};
use crate::json::Schema;
use crate::support::{Ran, Sandbox};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DAMAGED: i32 = 6;

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

/// A sandbox with the layers `low.tar` and `up.tar`, both compressed by gzip too, and `up.erofs`, the second one as an image.
fn sandbox() -> Sandbox {
    let s = Sandbox::new();
    let script = "
        mkdir -p low/opaque low/merged low/bin up/opaque up/merged
        echo old > low/opaque/old; echo gone > low/merged/gone; echo kept > low/merged/kept
        echo one > low/bin/one; ln low/bin/one low/bin/two; seq 20000 > low/large
        touch up/opaque/.wh..wh..opq up/merged/.wh.gone; echo new > up/opaque/new; chmod 700 up/merged
        mkdir up/bin; echo two > up/bin/two
        for layer in low up; do
            find low up -exec touch -hd @1000000000 {} +
            tar --format=pax --sort=name -cf $layer.tar -C $layer .
            gzip -kn $layer.tar
        done";
    let ran = Command::new("sh").args(["-ec", script]).current_dir(s.path("")).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    s.ok(&format!("-q image build --whiteouts overlay {} {}", at(&s, "up.tar"), at(&s, "up.erofs")));
    s
}

fn at(s: &Sandbox, name: &str) -> String {
    s.path(name).display().to_string()
}

/// The names in the sandbox, to see whether a command has left some.
fn names(s: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(s.path("")).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn layers_in_files_are_merged() {
    let s = sandbox();
    s.ok(&format!("-q image build {} {} {}", at(&s, "low.tar"), at(&s, "up.tar"), at(&s, "merged")));
    let files = s.ok(&format!("image ls -R {}", at(&s, "merged")));
    for (name, is_there) in [
        ("opaque/new", true),
        ("opaque/old", false),
        ("merged/kept", true),
        ("merged/gone", false),
        (".wh.", false),
    ] {
        assert_eq!(files.contains(name), is_there, "{name}: {files}");
    }
    let cat = |path: &str| s.ok(&format!("image cat {} {path}", at(&s, "merged")));
    assert_eq!((cat("/bin/one"), cat("/bin/two")), ("one\n".into(), "two\n".into()));
    s.ok(&format!("image check --strict {}", at(&s, "merged")));
    // The form of a layer does not matter, nor do the memory and a file for names.
    for upper in ["up.tar.gz", "up.erofs"] {
        let words = format!("{} {} {}", at(&s, "low.tar.gz"), at(&s, upper), at(&s, "other"));
        s.ok(&format!("-q image build --verify --memory 128M {words}"));
        assert!(fs::read(s.path("other")).unwrap() == fs::read(s.path("merged")).unwrap(), "{upper}");
    }
    // One layer of both, over a third one.
    let both = format!("{} {} {}", at(&s, "up.tar"), at(&s, "up.erofs"), at(&s, "both"));
    s.ok(&format!("-q image build --whiteouts overlay {both}"));
    s.ok(&format!("-q image build {} {} {}", at(&s, "low.tar"), at(&s, "both"), at(&s, "other")));
    assert!(fs::read(s.path("other")).unwrap() == fs::read(s.path("merged")).unwrap());
    let before = names(&s);
    for (words, code, what) in [
        (at(&s, "low.tar"), USAGE, "name the image to write too"),
        (format!("{} {} out", at(&s, "low.tar"), at(&s, "up")), USAGE, "is a directory, and layers are"),
        (format!("{} - out", at(&s, "low.tar")), USAGE, "standard input"),
        (format!("{} {} out", at(&s, "low.tar"), at(&s, "none")), NOT_FOUND, "none"),
        (format!("{} https://host/up.tar out", at(&s, "low.tar")), USAGE, "cannot be a layer"),
        (
            format!("--one-file-system {} {} out", at(&s, "low.tar"), at(&s, "up.tar")),
            USAGE,
            "not for layers",
        ),
        (
            format!("--ignore-zeros {0} {0} out", at(&s, "up.erofs")),
            USAGE,
            "--ignore-zeros is for tar archives",
        ),
        (format!("{0} {0}", at(&s, "low.tar")), USAGE, "would be replaced"),
    ] {
        let words = words.replace(" out", &format!(" {}", at(&s, "out")));
        s.run(&format!("image build {words}")).fails(code, what);
        assert_eq!(names(&s), before, "{words}");
    }
}

/// A registry with images of the layers of a sandbox.
struct Registry {
    server: Server,
    name: String,
}

/// A manifest of an image with these layers, whose configuration has the digests of these contents.
fn image(server: &Server, layers: &[(&str, &[u8])], contents: &[&[u8]]) -> String {
    let ids: Vec<_> = contents.iter().map(|bytes| format!("\"{}\"", digest(bytes))).collect();
    let config = format!("{{\"rootfs\": {{\"type\": \"layers\", \"diff_ids\": [{}]}}}}", ids.join(", "));
    put_blob(server, config.as_bytes());
    let layers = layers.iter().map(|(media_type, bytes)| {
        put_blob(server, bytes);
        descriptor(media_type, bytes, "")
    });
    let (config, layers) = (descriptor(CONFIG, config.as_bytes(), ""), layers.collect::<Vec<_>>().join(", "));
    format!(
        "{{\"schemaVersion\": 2, \"mediaType\": \"{IMAGE}\", \"config\": {config}, \"layers\": [{layers}]}}"
    )
}

impl Registry {
    fn start(s: &Sandbox) -> Self {
        let server = Server::start();
        let file = |name: &str| fs::read(s.path(name)).unwrap();
        let [low, low_gz, up, up_gz, up_erofs] =
            ["low.tar", "low.tar.gz", "up.tar", "up.tar.gz", "up.erofs"].map(file);
        let zstd = |bytes: &[u8]| {
            let mut out = vec![0; zstd_safe::compress_bound(bytes.len())];
            let len = zstd_safe::compress(out.as_mut_slice(), bytes, 3).unwrap();
            out.truncate(len);
            out
        };
        let (up_zst, erofs_zst) = (zstd(&up), zstd(&up_erofs));
        let (gzip, zstd, erofs_zstd) =
            (format!("{TAR}+gzip"), format!("{TAR}+zstd"), format!("{EROFS}+zstd"));
        let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        let mut manifests = Manifests::default();
        let archives = image(&server, &[(&gzip, &low_gz), (&zstd, &up_zst)], &[&low, &up]);
        manifests.add("archives", IMAGE, &archives);
        let mixed = image(&server, &[(docker, &low_gz), (EROFS, &up_erofs)], &[&low, &up_erofs]);
        manifests.add("mixed", IMAGE, &mixed);
        let compressed = image(&server, &[(TAR, &low), (&erofs_zstd, &erofs_zst)], &[&low, &up_erofs]);
        manifests.add("compressed", IMAGE, &compressed);
        manifests.add("other", IMAGE, &image(&server, &[(&gzip, &low_gz), (&gzip, &up_gz)], &[&low, &low]));
        manifests.add("swapped", IMAGE, &image(&server, &[(&gzip, &low_gz), (&gzip, &up_gz)], &[&up, &low]));
        manifests.add("fewer", IMAGE, &image(&server, &[(&gzip, &low_gz), (&gzip, &up_gz)], &[&low]));
        manifests.add(
            "encrypted",
            IMAGE,
            &image(&server, &[(TAR, &low), ("application/x+encrypted", &up)], &[&low, &up]),
        );
        let platform = |text: &str, features: &str| {
            let platform = "\"os\": \"linux\", \"architecture\": \"amd64\"";
            descriptor(IMAGE, text.as_bytes(), &format!(", \"platform\": {{{platform}{features}}}"))
        };
        let erofs = platform(&compressed, ", \"os.features\": [\"erofs\"]");
        manifests.add("index", INDEX, &index(&[platform(&archives, ""), erofs]));
        server.fail(move |request| manifests.answer(request));
        let name = format!("oci://{}/{NAME}", server.address);
        Registry { server, name }
    }
}

#[test]
fn layers_in_registries_are_merged_and_verified() {
    let s = sandbox();
    s.ok(&format!("-q image build {} {} {}", at(&s, "low.tar"), at(&s, "up.tar"), at(&s, "merged")));
    let wanted = fs::read(s.path("merged")).unwrap();
    let registry = Registry::start(&s);
    let (name, out) = (&registry.name, at(&s, "out"));
    for source in [
        format!("{name}:archives"),
        format!("{name}:mixed"),
        format!("{name}:compressed"),
        format!("{name}:archives --memory 128M"),
        format!("{} {name}:archives", at(&s, "low.tar")),
        format!("--platform linux/amd64 {name}:index"),
        format!("--platform linux(+erofs)/amd64 {name}:index"),
    ] {
        ok(&s, &format!("-q image build {source} {out}"), &[]);
        assert!(fs::read(&out).unwrap() == wanted, "{source}");
        fs::remove_file(&out).unwrap();
    }
    // Of an index, the image that need not be converted.
    registry.server.take_log();
    ok(&s, &format!("-q image build --platform linux/amd64 {name}:index {out}"), &[]);
    let zipped = digest(&fs::read(s.path("low.tar.gz")).unwrap());
    assert!(!registry.server.take_log().iter().any(|request| request.path.ends_with(&zipped)));
    fs::remove_file(&out).unwrap();
    let before = names(&s);
    let fails = |tag: &str, code, what: &str| {
        run(&s, &format!("image build {tag} {out}"), &[]).fails(code, what);
        assert_eq!(names(&s), before, "{tag}");
    };
    fails(&format!("{name}:other"), DAMAGED, "the configuration of the image names");
    fails(&format!("{name}:fewer"), 1, "the digests of 1 layers, of 2");
    fails(&format!("{name}:encrypted"), 1, "neither an archive nor an EROFS image");
    fails(&format!("{name}:none"), NOT_FOUND, "no such image");
    fails(
        &format!("{name}:index --platform linux/s390x"),
        NOT_FOUND,
        "one of: linux/amd64, linux(+erofs)/amd64",
    );
    // Another blob than that of its digest, which is damaged besides.
    let path = format!("/v2/{NAME}/blobs/{zipped}");
    let mut bytes = fs::read(s.path("low.tar.gz")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let object = |bytes: Vec<u8>| crate::image_remote::server::Object {
        bytes: bytes.into(),
        etag: None,
        last_modified: None,
    };
    registry.server.put(&path, object(bytes));
    fails(&format!("{name}:archives"), DAMAGED, "has another digest");
}

/// The path of a layer in a cache.
fn cached(cache: &str, contents: &[u8]) -> String {
    let digest = digest(contents);
    let hex = digest.strip_prefix("sha256:").unwrap();
    format!("{cache}/sha256/{}/{hex}.erofs", &hex[..2])
}

/// All files below a directory.
fn files_below(directory: &str) -> Vec<String> {
    let found = Command::new("find").args([directory, "-type", "f"]).output().unwrap();
    let mut found: Vec<_> = String::from_utf8(found.stdout).unwrap().lines().map(String::from).collect();
    found.sort();
    found
}

#[test]
fn a_layer_cache_gets_the_layers_that_it_does_not_have() {
    let s = sandbox();
    let registry = Registry::start(&s);
    let (name, cache) = (&registry.name, at(&s, "cache"));
    let [low, up] = ["low.tar", "up.tar"].map(|layer| fs::read(s.path(layer)).unwrap());
    let paths = [cached(&cache, &low), cached(&cache, &up)];
    let fill = format!("image build --layer-cache {cache} --platform linux/amd64");
    // Of an index, the image whose layers are archives: their diffIDs are those that containerd looks for.
    let out = ok(&s, &format!("{fill} --verify {name}:index"), &[]);
    let mut wanted = paths.to_vec();
    wanted.sort();
    assert_eq!(files_below(&cache), wanted);
    for (path, layer) in paths.iter().zip(["low.tar", "up.tar"]) {
        use std::os::unix::fs::PermissionsExt;
        assert!(out.contains(path), "{out}");
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o644);
        s.ok(&format!("-q image build --whiteouts overlay {} {}", at(&s, layer), at(&s, "one")));
        assert!(fs::read(path).unwrap() == fs::read(s.path("one")).unwrap(), "{layer}");
    }
    // A file that a killed command left long ago is removed, and other files stay.
    let folder = Path::new(&paths[1]).parent().unwrap();
    let left = [folder.join(".pagefold-0123456789abcdef.part"), folder.join("other.part")];
    for path in &left {
        let file = fs::File::create(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_hours(2)).unwrap();
    }
    ok(&s, &format!("{fill} {name}:archives"), &[]);
    assert_eq!(left.map(|path| path.exists()), [false, true]);
    fs::remove_file(folder.join("other.part")).unwrap();
    // Uncompressed contents are written while a layer comes: the tree is the same.
    let plain = at(&s, "plain");
    let fill_plain = format!("image build --layer-cache {plain} --compression none --platform linux/amd64");
    for (layer, source) in [("low.tar", &low), ("up.tar", &up)] {
        ok(&s, &format!("{fill_plain} --verify {name}:archives"), &[]);
        s.ok(&format!(
            "-q image build --whiteouts overlay --compression none {} {}",
            at(&s, layer),
            at(&s, "one")
        ));
        let [found, wanted] = [cached(&plain, source), at(&s, "one")].map(|image| {
            s.ok(&format!("image check {image}"));
            s.ok(&format!("image tar {image} -o {}", at(&s, "tree.tar")));
            fs::read(s.path("tree.tar")).unwrap()
        });
        assert!(found == wanted, "{layer}");
    }
    files_below(&plain).iter().for_each(|path| fs::remove_file(path).unwrap());
    run(&s, &format!("{fill_plain} {name}:swapped"), &[])
        .fails(DAMAGED, "the configuration of the image names");
    assert!(files_below(&plain).is_empty());
    // Layers that are there are not fetched, whatever they contain.
    fs::write(&paths[0], "present").unwrap();
    fs::remove_file(&paths[1]).unwrap();
    registry.server.take_log();
    let ran = run(&s, &format!("{fill} {name}:archives"), &[]);
    assert!(ran.code == 0 && ran.err.contains("in the cache already: 1 layer"), "{ran:?}");
    let zipped = digest(&fs::read(s.path("low.tar.gz")).unwrap());
    assert!(!registry.server.take_log().iter().any(|request| request.path.ends_with(&zipped)));
    assert_eq!(files_below(&cache), wanted);
    assert_eq!(fs::read(&paths[0]).unwrap(), b"present");
    fs::remove_file(&paths[1]).unwrap();
    let json = run(&s, &format!("{fill} --json {name}:archives"), &[]);
    assert!(json.code == 0 && json.err.is_empty(), "{json:?}");
    Schema::of("image-build-layer-cache").check(&json.out);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    for (path, layer, built) in [(&paths[0], &low, false), (&paths[1], &up, true)] {
        let found = json["layers"].as_array().unwrap().iter().find(|found| found["path"] == **path).unwrap();
        assert_eq!((&found["diff_id"], &found["built"]), (&digest(layer).into(), &built.into()));
        assert_eq!(found["image_bytes"], fs::metadata(path).unwrap().len());
    }
    // A layer whose diffID is another one leaves nothing.
    wanted.iter().for_each(|path| fs::remove_file(path).unwrap());
    let ran = run(&s, &format!("{fill} {name}:swapped"), &[]);
    ran.fails(DAMAGED, "the configuration of the image names");
    assert!(files_below(&cache).is_empty());
}

#[test]
fn a_layer_cache_refuses_what_containerd_would_not_look_for() {
    let s = sandbox();
    let registry = Registry::start(&s);
    let (name, cache) = (&registry.name, at(&s, "cache"));
    for (words, code, what) in [
        (format!("{name}:archives --all-root"), USAGE, "--all-root is not for --layer-cache"),
        (format!("{name}:archives --no-xattrs"), USAGE, "--no-xattrs is not for --layer-cache"),
        (format!("{name}:archives --xattrs-include user.*"), USAGE, "--xattrs-include is not for"),
        (format!("{name}:archives --xattrs-exclude user.*"), USAGE, "--xattrs-exclude is not for"),
        (format!("{name}:archives --set-xattr user.a=b"), USAGE, "--set-xattr is not for"),
        (format!("{name}:archives --file-contexts none"), USAGE, "--file-contexts is not for"),
        (format!("{name}:archives --escape-overlay"), USAGE, "--escape-overlay is not for"),
        (format!("{name}:archives --strip-overlay"), USAGE, "--strip-overlay is not for"),
        (format!("{name}:archives --hard-dereference"), USAGE, "--hard-dereference is not for"),
        (format!("{name}:archives --ignore-zeros"), USAGE, "--ignore-zeros is not for"),
        (at(&s, "low.tar"), USAGE, "is no image in a registry"),
        (format!("{name}:mixed"), 5, "has a layer that is an EROFS image"),
        (format!("{name}:none"), NOT_FOUND, "no such image"),
    ] {
        run(&s, &format!("image build --layer-cache {cache} {words}"), &[]).fails(code, what);
        assert!(files_below(&cache).is_empty(), "{words}");
    }
}

/// Tables and the decoder of a layer take memory at the same time.
#[test]
fn the_decoder_of_a_layer_that_is_placed_gets_half_of_the_memory() {
    let s = sandbox();
    let (server, mut manifests) = (Server::start(), Manifests::default());
    let layer = fs::read(s.path("up.tar")).unwrap();
    // A Zstandard frame with a window of 64 MiB, and one block that is stored as it is.
    let block = ((layer.len() as u32) << 3 | 1).to_le_bytes();
    let frame = [b"\x28\xb5\x2f\xfd\x00\x80", &block[..3], &layer].concat();
    assert!(layer.len() < 1 << 17);
    manifests.add("1", IMAGE, &image(&server, &[(TAR, &frame)], &[&layer]));
    server.fail(move |request| manifests.answer(request));
    let cache = at(&s, "cache");
    let fill =
        format!("image build --layer-cache {cache} --compression none oci://{}/{NAME}:1", server.address);
    run(&s, &format!("{fill} --memory 127M"), &[]).fails(FAILED, "too much memory");
    assert!(files_below(&cache).is_empty());
    ok(&s, &format!("{fill} --memory 128M"), &[]);
    assert_eq!(files_below(&cache), [cached(&cache, &layer)]);
}

/// The rest of a layer is of no use where its beginning has no space.
#[test]
fn a_full_disk_ends_the_reading_of_a_layer() {
    let s = Sandbox::new();
    let (server, mut manifests) = (Server::start(), Manifests::default());
    let layer: Vec<u8> =
        (0..8_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_769).to_le_bytes()).collect();
    manifests.add("1", IMAGE, &image(&server, &[(TAR, &layer)], &[&layer]));
    server.fail(move |request| manifests.answer(request));
    let words = format!("-q image build oci://{}/{NAME}:1 {}", server.address, at(&s, "out"));
    let unlimited = command(&s, &words, &[]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2048; exec \"$@\"", "sh"]).arg(unlimited.get_program());
    limited.args(unlimited.get_args());
    for (name, value) in unlimited.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    Ran::new(&words, limited.output().unwrap()).fails(FAILED, "writing a temporary file in");
    let asked =
        server.take_log().into_iter().filter_map(|request| request.range()).map(|(from, to)| to + 1 - from);
    let asked: u64 = asked.sum();
    assert!(asked < layer.len() as u64 * 2 / 3, "{asked} of {} bytes were asked for", layer.len());
}
