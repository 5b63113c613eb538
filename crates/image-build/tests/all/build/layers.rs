//! Layers that are merged, compared with a model: the names of each layer, applied one after the other.

use super::{build_at, options};
use crate::tarball::Tarball;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::tar::TarOptions;
use pagefold_image_build::source::{Layers, Scanned, Whiteouts, image, tar};
use pagefold_image_build::{BuildError, InodeId, Pattern, Spill, Tree, XattrFilter};
use pagefold_testkit::Random;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// Reads an archive as the next layer, and merges it.
fn push(layers: &mut Layers, archive: &[u8]) -> Result<(), BuildError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    let path = Path::new("layer.tar");
    let scanned = tar::scan(file, path, layers.tar_options()).unwrap();
    layers.push(scanned, path, &mut |_| ControlFlow::Continue(()))
}

fn merged(archives: &[Vec<u8>], kept: Option<Whiteouts>) -> Result<Scanned, BuildError> {
    let mut layers = Layers::new(kept, &Spill::none()).unwrap();
    archives.iter().try_for_each(|archive| push(&mut layers, archive))?;
    layers.finish(&[], &XattrFilter::default())
}

/// The files of a tree: by path the type, the contents or target, the owner, and the first path of the same inode.
type Listing = BTreeMap<String, (char, String, u32, String)>;

fn listing(tree: &Tree) -> Listing {
    let (mut found, mut first) = (Listing::new(), BTreeMap::new());
    list(tree, InodeId::ROOT, "", &mut |path, id| {
        let text = match (tree.content(id, b""), tree.link_target(id)) {
            (Some(content), _) => {
                let mut bytes = vec![0; content.len_bytes() as usize];
                content.open().unwrap().read_exact_at(&mut bytes, 0).unwrap();
                String::from_utf8(bytes).unwrap()
            }
            (None, Some(target)) => String::from_utf8(target.to_vec()).unwrap(),
            (None, None) => String::new(),
        };
        let kind = format!("{:?}", tree.kind(id)).chars().next().unwrap();
        let first = first.entry(id).or_insert_with(|| path.to_string()).clone();
        found.insert(path.to_string(), (kind, text, tree.metadata(id).uid, first));
    });
    found
}

fn list(tree: &Tree, directory: InodeId, path: &str, each: &mut impl FnMut(&str, InodeId)) {
    for (name, id) in tree.entries(directory) {
        let path = format!("{path}{}", String::from_utf8(name.to_vec()).unwrap());
        each(&path, id);
        list(tree, id, &format!("{path}/"), each);
    }
}

/// A step of a layer, as its archive has it.
#[derive(Debug, Clone)]
enum Step {
    File(String),
    Directory(String),
    Symlink(String),
    /// A name, and the file that it is a further name of.
    Link(String, String),
    Whiteout(String),
    Opaque(String),
}

impl Step {
    /// The path that the layer has then.
    fn makes(&self) -> Option<&str> {
        match self {
            Step::File(path) | Step::Directory(path) | Step::Symlink(path) | Step::Link(path, _) => {
                Some(path)
            }
            Step::Whiteout(_) | Step::Opaque(_) => None,
        }
    }
}

/// The owner of what a layer has.
fn owner(layer: usize) -> u32 {
    1000 + layer as u32
}

fn archive_of(steps: &[Step], layer: usize) -> Vec<u8> {
    let with_owner = |block: &mut [u8; 512]| {
        block[108..116].copy_from_slice(format!("{:07o}\0", owner(layer)).as_bytes());
    };
    let member = |tarball: Tarball, name: &str, letter, link: &str, size| {
        tarball.raw(Tarball::header(name.as_bytes(), letter, size), |block| {
            with_owner(block);
            block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        })
    };
    let tarball = steps.iter().fold(Tarball::default(), |tarball, step| match step {
        Step::File(path) => {
            let text = format!("{path} of {layer}");
            member(tarball, path, b'0', "", text.len() as u64).data(text.as_bytes())
        }
        Step::Directory(path) => member(tarball, path, b'5', "", 0),
        Step::Symlink(path) => member(tarball, path, b'2', "elsewhere", 0),
        Step::Link(path, target) => member(tarball, path, b'1', target, 0),
        Step::Whiteout(path) => {
            let (parent, name) = split(path);
            member(tarball, &format!("{parent}.wh.{name}"), b'0', "", 0)
        }
        Step::Opaque(path) => member(tarball, &format!("{path}/.wh..wh..opq"), b'0', "", 0),
    });
    tarball.end()
}

fn split(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('/').map_or(0, |slash| slash + 1))
}

/// The files after some layers, by path: the type, the contents or target, the owner, and a number of the inode.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, (char, String, u32, usize)>,
    inodes: usize,
}

impl Model {
    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.files.retain(|other, _| other != path && !other.starts_with(&below));
    }

    fn put(&mut self, path: &str, kind: char, text: String, layer: usize) {
        self.inodes += 1;
        self.files.insert(path.into(), (kind, text, owner(layer), self.inodes));
    }

    fn apply(&mut self, steps: &[Step], layer: usize) {
        let lower = self.files.clone();
        for step in steps {
            match step {
                Step::Whiteout(path) => self.remove(path),
                Step::Opaque(path) => {
                    let below = format!("{path}/");
                    self.files.retain(|other, _| !other.starts_with(&below));
                }
                _ => {}
            }
        }
        for step in steps {
            match step {
                Step::File(path) => {
                    self.remove(path);
                    self.put(path, 'R', format!("{path} of {layer}"), layer);
                }
                Step::Symlink(path) => {
                    self.remove(path);
                    self.put(path, 'S', "elsewhere".into(), layer);
                }
                Step::Directory(path) => match self.files.get_mut(path) {
                    Some((kind, _, uid, _)) if *kind == 'D' => *uid = owner(layer),
                    _ => {
                        self.remove(path);
                        self.put(path, 'D', String::new(), layer);
                    }
                },
                Step::Link(path, target) => {
                    let of_layer = self.files.get(target).filter(|file| file.2 == owner(layer));
                    let file = of_layer.unwrap_or_else(|| &lower[target]).clone();
                    self.remove(path);
                    self.files.insert(path.clone(), file);
                }
                Step::Whiteout(_) | Step::Opaque(_) => {}
            }
        }
    }

    fn listing(&self) -> Listing {
        let mut first = BTreeMap::new();
        let files = self.files.iter().map(|(path, (kind, text, uid, inode))| {
            let first = first.entry(inode).or_insert_with(|| path.clone()).clone();
            (path.clone(), (*kind, text.clone(), *uid, first))
        });
        files.collect()
    }
}

/// A layer over the files of the model, as a program may write it: each name once, directories before their files.
fn random_layer(random: &mut Random, model: &Model) -> Vec<Step> {
    let names = ["a", "b", "c"];
    let mut steps = Vec::new();
    let mut directories = vec![String::new()];
    let mut files: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(directory) = directories.get(at).cloned() {
        at += 1;
        if !directory.is_empty() && random.index(8) == 0 {
            steps.push(Step::Opaque(directory.trim_end_matches('/').into()));
        }
        for name in names {
            let path = format!("{directory}{name}");
            let lower: Vec<&String> =
                model.files.iter().filter(|(_, file)| file.0 != 'D').map(|(path, _)| path).collect();
            if random.index(5) == 0 {
                steps.push(Step::Whiteout(path.clone()));
            }
            match random.index(9) {
                0 | 1 => {
                    files.push(path.clone());
                    steps.push(Step::File(path));
                }
                2 => steps.push(Step::Symlink(path)),
                3 | 4 if directory.len() < 6 => {
                    directories.push(format!("{path}/"));
                    steps.push(Step::Directory(path));
                }
                5 if !files.is_empty() => {
                    let target = files[random.index(files.len())].clone();
                    steps.push(Step::Link(path, target));
                }
                6 if !lower.is_empty() => {
                    let target = lower[random.index(lower.len())].clone();
                    // A name of this layer would be found first.
                    if !steps.iter().any(|step| step.makes().is_some_and(|made| target.starts_with(made))) {
                        steps.push(Step::Link(path, target));
                    }
                }
                _ => {}
            }
        }
    }
    if random.index(2) == 0 {
        // Whiteouts anywhere in the archive mean the same.
        steps.sort_by_key(|step| step.makes().is_none());
    }
    steps
}

/// Merges a stack in two parts, of which the upper one becomes the image of a layer, with whiteouts. False if its links lead
/// to the lower part.
fn is_same_in_parts(archives: &[Vec<u8>], wanted: &Listing, what: &str) -> bool {
    let (lower, upper) = archives.split_at(archives.len() / 2);
    let Ok(upper) = merged(upper, Some(Whiteouts::Overlay)) else { return false };
    let at = tempfile::NamedTempFile::new().unwrap();
    build_at(at.path(), &upper.tree, &options("lz4", 4096, true));
    let image = Image::open_file(at.path(), ReadOptions::default()).unwrap();
    let mut layers = Layers::new(None, &Spill::none()).unwrap();
    lower.iter().for_each(|archive| push(&mut layers, archive).unwrap());
    let upper = image::scan(&image, &[]).unwrap();
    layers.push(upper, Path::new("upper"), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(&listing(&layers.finish(&[], &XattrFilter::default()).unwrap().tree), wanted, "{what}");
    true
}

#[test]
fn random_stacks_become_what_a_model_makes_of_them() {
    let (mut links, mut parts) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let (mut model, mut archives, mut all) = (Model::default(), Vec::new(), Vec::new());
        for layer in 0..1 + random.index(5) {
            let steps = random_layer(&mut random, &model);
            model.apply(&steps, layer);
            archives.push(archive_of(&steps, layer));
            all.push(steps);
        }
        let scanned = merged(&archives, None).unwrap_or_else(|e| panic!("{seed}: {e}\n{all:#?}"));
        let wanted = model.listing();
        links += wanted.iter().filter(|(path, file)| **path != file.3).count();
        assert_eq!(listing(&scanned.tree), wanted, "{seed}: {all:#?}");
        if seed % 4 == 0 {
            parts += u32::from(is_same_in_parts(&archives, &wanted, &format!("{seed}, in parts: {all:#?}")));
        }
    }
    assert!(links > 50 && parts > 20, "{links} {parts}");
}

#[test]
fn attributes_of_overlayfs_are_whiteouts_and_no_files() {
    let lower =
        Tarball::default().member("d", b'5', "").file("d/old", b"old").file("gone", b"").file("f", b"1");
    let opaque = [("SCHILY.xattr.trusted.overlay.opaque", b"y".as_slice())];
    let origin = [("SCHILY.xattr.user.overlay.origin", b"".as_slice()), ("SCHILY.xattr.user.a", b"b")];
    let upper = Tarball::default()
        .pax(b'x', &opaque)
        .member("d", b'5', "")
        .file("d/new", b"new")
        .raw(Tarball::header(b"gone", b'3', 0), |block| {
            block[329..337].copy_from_slice(b"0000000\0");
            block[337..345].copy_from_slice(b"0000000\0");
        })
        .pax(b'x', &origin)
        .file("f", b"2");
    let archives = [lower.end(), upper.end()];
    let scanned = merged(&archives, None).unwrap();
    let found = listing(&scanned.tree);
    assert!(found.keys().eq(["d", "d/new", "f"]), "{found:?}");
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let xattrs = scanned.tree.xattrs(scanned.tree.find(path).unwrap());
        xattrs.into_iter().map(|(name, _)| name.into_vec()).collect()
    };
    assert!(names(b"d").is_empty());
    assert_eq!(names(b"f"), [b"user.a".to_vec()]);
    let kept = merged(&archives[1..], Some(Whiteouts::OverlayUser)).unwrap();
    let xattrs = kept.tree.xattrs(kept.tree.find(b"d").unwrap());
    assert_eq!(&*xattrs[0].0, b"user.overlay.opaque");
    assert!(kept.tree.find(b"gone").is_some_and(|id| kept.tree.device(id).is_some()));
    let redirect = [("SCHILY.xattr.trusted.overlay.redirect", b"/d".as_slice())];
    let moved = Tarball::default().pax(b'x', &redirect).member("moved", b'5', "").end();
    let error = merged(&[moved], None).unwrap_err().to_string();
    assert!(error.contains("'moved'") && error.contains("redirect_dir"), "{error}");
}

#[test]
fn directories_without_a_member_change_nothing_and_are_reached_through_links() {
    let lower = Tarball::default()
        .member("usr", b'5', "")
        .member("usr/lib", b'5', "")
        .file("usr/lib/old", b"old")
        .file("usr/lib/gone", b"gone")
        .member("lib", b'2', "usr/lib");
    let upper =
        Tarball::default().file("lib/new", b"new").file("usr/lib/.wh.gone", b"").file("usr/more", b"");
    let scanned = merged(&[lower.clone().end(), upper.end()], None).unwrap();
    let found = listing(&scanned.tree);
    assert!(
        found.keys().eq(["lib", "usr", "usr/lib", "usr/lib/new", "usr/lib/old", "usr/more"]),
        "{found:?}"
    );
    // Those of the header of tarballs, not of a directory that nothing describes.
    assert_eq!(scanned.tree.metadata(scanned.tree.find(b"usr").unwrap()).permissions, 0o640);
    let through_link = Tarball::default().file("lib/.wh.gone", b"").member("b", b'1', "lib/old").end();
    let found = listing(&merged(&[lower.clone().end(), through_link], None).unwrap().tree);
    assert!(!found.contains_key("usr/lib/gone"), "{found:?}");
    assert_eq!(found["usr/lib/old"].3, "b");
    // A member makes it a directory.
    let replaced = Tarball::default().member("lib", b'5', "").file("lib/new", b"new").end();
    let found = listing(&merged(&[lower.clone().end(), replaced], None).unwrap().tree);
    assert!(found["lib"].0 == 'D' && found.contains_key("usr/lib/old"), "{found:?}");
    for (archive, what) in [
        (Tarball::default().file("usr/lib/old/x", b"").end(), "'usr/lib/old': a lower layer has this name"),
        (Tarball::default().member("x", b'1', "usr/none").end(), "a hard link to 'usr/none'"),
        (Tarball::default().member("x", b'1', "usr").end(), "a hard link to 'usr'"),
        (Tarball::default().file("usr/.wh..", b"").end(), "a whiteout of no name"),
    ] {
        let mut layers = Layers::new(None, &Spill::none()).unwrap();
        push(&mut layers, &lower.clone().end()).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&archive).unwrap();
        let path = Path::new("layer.tar");
        let result = tar::scan(file, path, layers.tar_options())
            .and_then(|scanned| layers.push(scanned, path, &mut |_| ControlFlow::Continue(())));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("layer.tar") && error.contains(what), "{error}");
    }
}

#[test]
fn files_below_links_are_where_the_links_lead_in_the_end() {
    let directories = || Tarball::default().member("usr", b'5', "").member("usr/lib", b'5', "");
    let link = |archive: Tarball| archive.member("lib", b'2', "usr/lib").end();
    let lower = link(directories().file("usr/lib/a", b"a"));
    let replaced = Tarball::default()
        .member("usr/lib64", b'5', "")
        .member("usr/lib", b'2', "lib64")
        .file("lib/x", b"x")
        .file("lib/sub/y", b"y");
    let found = listing(&merged(&[lower, replaced.end()], None).unwrap().tree);
    assert_eq!(found["usr/lib64/x"].1, "x", "{found:?}");
    assert!(found["usr/lib"].0 == 'S' && found["usr/lib64/sub/y"].1 == "y", "{found:?}");
    // The layer itself has the directory to which the link leads.
    let only_link = link(Tarball::default());
    let found = listing(&merged(&[only_link, directories().file("lib/x", b"x").end()], None).unwrap().tree);
    assert!(found["lib"].0 == 'S' && found["usr/lib/x"].1 == "x", "{found:?}");
}

#[test]
fn a_file_that_a_layer_has_twice_through_a_link_is_refused() {
    let lower = Tarball::default()
        .file("usr/lib/d/old", b"")
        .file("usr/lib/a", b"a")
        .member("lib", b'2', "usr/lib")
        .member("top", b'2', "/");
    let new = Tarball::default;
    for upper in [
        new().file("lib/x", b"via-lib").file("usr/lib/x", b"via-usr"),
        new().file("usr/lib/x", b"via-usr").member("lib/x", b'5', ""),
        new().file("usr/lib/x", b"via-usr").file("lib/x/y", b"below"),
        new().file("usr/lib/d/new", b"direct").file("lib/d", b"replaces the directory"),
        new().file("lib/x", b"behind").file("top/usr", b"replaces what is above it"),
        new().member("usr/lib/x", b'1', "usr/lib/a").file("lib/x", b"via-lib"),
    ] {
        let error = merged(&[lower.clone().end(), upper.end()], None).unwrap_err().to_string();
        assert!(error.contains("twice, through a link") || error.contains("no directory"), "{error}");
    }
    // Directories are merged, and files of lower layers are replaced.
    let upper = new().file("usr/lib/d/one", b"1").file("lib/d/two", b"2").file("lib/a", b"new");
    let found = listing(&merged(&[lower.end(), upper.end()], None).unwrap().tree);
    assert!(["one", "two", "old"].iter().all(|name| found.contains_key(&format!("usr/lib/d/{name}"))));
    assert_eq!(found["usr/lib/a"].1, "new");
}

#[test]
fn a_merge_ends_when_it_is_asked_to() {
    let archive = Tarball::default().file("a", b"a").file("b/c", b"c").end();
    for calls in 1..5 {
        let mut layers = Layers::new(None, &Spill::none()).unwrap();
        let (path, mut file) = (Path::new("layer.tar"), tempfile::tempfile().unwrap());
        file.write_all(&archive).unwrap();
        let scanned = tar::scan(file, path, layers.tar_options()).unwrap();
        let pushed = layers.push(scanned, path, &mut |count| {
            if count == calls { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(pushed, Err(BuildError::Interrupted)), "{calls}: {pushed:?}");
    }
}

/// Whether a layer is the only one makes no difference.
#[test]
fn patterns_leave_out_the_same_of_one_layer_and_of_several() {
    let archive = Tarball::default().file("gone", b"").file("d/.wh.gone", b"").file("d/.wh.other", b"").end();
    for text in ["gone", ".wh.gone", "d/gone", "other"] {
        let exclude = [Pattern::parse(text).unwrap()];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&archive).unwrap();
        let options =
            TarOptions { whiteouts: Whiteouts::Overlay, exclude: exclude.to_vec(), ..TarOptions::default() };
        let alone = tar::scan(file, Path::new("layer.tar"), &options).unwrap();
        let mut layers = Layers::new(Some(Whiteouts::Overlay), &Spill::none()).unwrap();
        push(&mut layers, &archive).unwrap();
        let merged = layers.finish(&exclude, &XattrFilter::default()).unwrap();
        assert!(listing(&merged.tree).keys().eq(listing(&alone.tree).keys()), "{text}");
    }
}
