//! Stacks of layers drawn at random: their images, which the kernel mounts and overlays, show what an obvious model gets by
//! applying one layer after another, as the OCI specification describes it.
//!
//! The model: first the whiteouts of a layer remove what layers below it have; then its members are placed. The names of
//! directories and of symbolic links differ, because an overlay mount does not follow a link of a lower layer as a program
//! does that extracts into one directory.

use super::files::{self, Files, Kind};
use super::random::{Random, run};
use crate::tarball::Tarball;
use pagefold_image_build::source::Whiteouts;
use pagefold_image_build::source::tar::{TarOptions, scan};
use pagefold_image_build::{Options, Target, build};
use pagefold_testkit::skipped;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const CASES: u64 = 300;

/// Types and contents by path.
type Model = BTreeMap<String, Kind>;

enum Member {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    /// A further name of a file before it in the layer.
    Link(String),
    /// A whiteout of the name.
    Gone,
    /// Its directory is opaque.
    Opaque,
}

/// A layer: paths and members, in the order of the archive.
type Layer = Vec<(String, Member)>;

fn draw(random: &mut Random, number: u8) -> Layer {
    let mut layer = Layer::new();
    // A path is of one type in a layer, and nothing lies below a file of it.
    let (mut directories, mut leaves) = (BTreeSet::<String>::new(), BTreeSet::<String>::new());
    let mut plain: Vec<String> = Vec::new();
    for member in 0..random.pick(&[3, 6, 10]) {
        let depth = random.below(3);
        let parent = (0..depth).map(|_| random.pick(&["d", "e"])).collect::<Vec<_>>().join("/");
        let name = random.pick(&["d", "e", "f", "g"]);
        let join = |parent: &str, name: &str| format!("{parent}/{name}").trim_start_matches('/').to_string();
        let path = join(&parent, name);
        let parents: Vec<String> = path.match_indices('/').map(|(at, _)| path[..at].to_string()).collect();
        if parents.iter().any(|parent| leaves.contains(parent)) {
            continue;
        }
        let is_used = directories.contains(&path) || leaves.contains(&path);
        let contents = || vec![b'a' + number, b'0' + member];
        let kind = match random.below(10) {
            0..=2 if !leaves.contains(&path) => {
                directories.insert(path.clone());
                Member::Directory
            }
            3..=5 if !is_used => {
                plain.push(path.clone());
                Member::File(contents())
            }
            6 if !is_used && "fg".contains(name) => Member::Symlink(format!("to-{number}")),
            7 if !is_used && !plain.is_empty() => {
                Member::Link(plain[random.below(plain.len() as u64) as usize].clone())
            }
            8 => Member::Gone,
            9 if !parent.is_empty() => Member::Opaque,
            _ => continue,
        };
        directories.extend(parents);
        match kind {
            Member::File(_) | Member::Symlink(_) | Member::Link(_) => _ = leaves.insert(path.clone()),
            _ => {}
        }
        let path = if matches!(kind, Member::Opaque) { parent } else { path };
        layer.push((path, kind));
    }
    layer
}

/// The archive of a layer.
fn archive(layer: &Layer) -> Vec<u8> {
    let beside = |path: &str, prefix: &str| match path.rsplit_once('/') {
        Some((parent, name)) => format!("{parent}/{prefix}{name}"),
        None => format!("{prefix}{path}"),
    };
    let archive = layer.iter().fold(Tarball::default(), |archive, (path, member)| match member {
        Member::Directory => archive.member(path, b'5', ""),
        Member::File(contents) => archive.file(path, contents),
        Member::Symlink(target) => archive.member(path, b'2', target),
        Member::Link(target) => archive.member(path, b'1', target),
        Member::Gone => archive.file(&beside(path, ".wh."), b""),
        Member::Opaque => archive.file(&format!("{path}/.wh..wh..opq"), b""),
    });
    archive.end()
}

/// Removes all below a directory.
fn remove_below(model: &mut Model, path: &str) {
    model.retain(|other, _| !other.starts_with(&format!("{path}/")));
}

/// Makes the directories of a path, in place of other files.
fn make_parents(model: &mut Model, path: &str) {
    for (at, _) in path.match_indices('/') {
        model.insert(path[..at].to_string(), Kind::Directory);
    }
}

/// Applies a layer.
fn apply(model: &mut Model, layer: &Layer) {
    for (path, member) in layer {
        match member {
            Member::Gone => {
                model.remove(path);
                remove_below(model, path);
            }
            Member::Opaque => remove_below(model, path),
            _ => {}
        }
    }
    for (path, member) in layer {
        // A whiteout needs its directory, too.
        make_parents(model, path);
        let kind = match member {
            Member::Directory => Kind::Directory,
            Member::File(contents) => Kind::File(contents.clone()),
            Member::Symlink(target) => Kind::Symlink(target.clone().into_bytes()),
            Member::Link(target) => model[target].clone(),
            Member::Gone => continue,
            Member::Opaque => Kind::Directory,
        };
        if kind != Kind::Directory {
            remove_below(model, path);
        }
        model.insert(path.clone(), kind);
    }
}

/// Mounts that end with their owner, the last one first.
#[derive(Default)]
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn add(&mut self, source: &Path, at: &Path, kind: &str, options: &str) -> io::Result<()> {
        let options = std::ffi::CString::new(options).unwrap();
        fs::create_dir_all(at).unwrap();
        mount(source, at, kind, MountFlags::RDONLY, options.as_c_str())?;
        self.0.push(at.to_path_buf());
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(at) = self.0.pop() {
            let _ = unmount(at, UnmountFlags::DETACH);
        }
    }
}

/// The files of the overlay mount of layers, the lowest first.
fn overlaid(layers: &[Layer]) -> io::Result<Files> {
    let work = tempfile::tempdir()?;
    let mut mounts = Mounts::default();
    let options = TarOptions { whiteouts: Whiteouts::Overlay, ..TarOptions::default() };
    // An overlay mount has at least two layers.
    let empty = work.path().join("empty");
    fs::create_dir(&empty)?;
    let mut lower = vec![empty.display().to_string()];
    for (number, layer) in layers.iter().enumerate() {
        let at = |name: &str| work.path().join(format!("{name}{number}"));
        fs::write(at("tar"), archive(layer))?;
        let tree = scan(File::open(at("tar"))?, &at("tar"), &options).unwrap().tree;
        let image = File::create(at("image"))?;
        let options = Options { compression: None, threads: 1, ..Options::for_target(Target::new(6, 12)) };
        build(&tree, &options, &image, &mut |_| ControlFlow::Continue(())).unwrap();
        drop(image);
        mounts.add(&at("image"), &at("lower"), "erofs", "")?;
        lower.insert(0, at("lower").display().to_string());
    }
    let at = work.path().join("overlay");
    mounts.add(Path::new("overlay"), &at, "overlay", &format!("lowerdir={}", lower.join(":")))?;
    Ok(files::of_directory(&at, ""))
}

#[test]
fn random_layers_are_overlaid_as_they_are_applied_one_by_one() {
    let test = "random_layers_are_overlaid_as_they_are_applied_one_by_one";
    if !rustix::process::geteuid().is_root() {
        return skipped!("{test}: only root may mount");
    }
    // Linux mounts images in files without a loop device from 6.12 on.
    if let Err(error) = overlaid(&[vec![("f".into(), Member::File(b"x".to_vec()))]]) {
        return skipped!("{test}: the kernel does not mount the image: {error}");
    }
    run(test, CASES, |seed, replayed| {
        let mut random = Random(seed);
        let count = random.pick(&[2, 3]);
        let layers: Vec<Layer> = (0..count).map(|number| draw(&mut random, number)).collect();
        let mut wanted = Model::new();
        layers.iter().for_each(|layer| apply(&mut wanted, layer));
        let mut found = overlaid(&layers).unwrap();
        found.remove(&b""[..]);
        let found: Model =
            found.into_iter().map(|(path, file)| (String::from_utf8(path).unwrap(), file.kind)).collect();
        assert_eq!(found, wanted, "{replayed}\n{}", shown(&layers));
    });
}

fn shown(layers: &[Layer]) -> String {
    let member = |(path, member): &(String, Member)| match member {
        Member::Directory => format!("{path}/"),
        Member::File(_) => path.clone(),
        Member::Symlink(target) => format!("{path} -> {target}"),
        Member::Link(target) => format!("{path} = {target}"),
        Member::Gone => format!("no {path}"),
        Member::Opaque => format!("only {path}"),
    };
    let layer = |layer: &Layer| layer.iter().map(member).collect::<Vec<_>>().join(", ");
    layers.iter().map(layer).collect::<Vec<_>>().join("\n")
}
