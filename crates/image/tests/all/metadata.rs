//! Metadata of the reference images, compared with the manifest of their tree.

use crate::support::tree::{Image, block_of};
use crate::support::{manifest, reference_image, reference_names};
use pagefold_image::read::xattr::Xattrs;
use pagefold_image::read::{Algorithm, FileKind};

#[test]
fn reference_images_equal_the_manifest() {
    let manifest = manifest();
    assert_eq!(manifest.len(), 1023);
    for name in reference_names() {
        let image = Image::open(&reference_image(name), &[]);
        let nodes = image.walk();
        let listed: Vec<&[u8]> = nodes.keys().map(Vec::as_slice).collect();
        let mut wanted: Vec<&[u8]> = manifest.iter().map(|entry| entry.path.as_bytes()).collect();
        wanted.sort();
        assert_eq!(listed, wanted, "{name}");
        for entry in &manifest {
            let node = &nodes[entry.path.as_bytes()];
            let inode = &node.inode;
            let place = format!("{name}: {}", entry.path);
            assert_eq!(
                (inode.mode, inode.uid, inode.gid, inode.nlink),
                (entry.mode, entry.uid, entry.gid, entry.nlink),
                "{place}"
            );
            if let Some(size) = entry.size {
                assert_eq!(inode.size, size, "{place}");
            }
            let target = (inode.kind == FileKind::Symlink).then(|| node.data.as_deref().unwrap());
            assert_eq!(target, entry.target.as_deref().map(str::as_bytes), "{place}");
            assert_eq!(inode.device.map(|d| (d.major, d.minor)), entry.rdev, "{place}");
            assert_eq!(node.xattrs, entry.xattrs, "{place}");
        }
    }
}

#[test]
fn reference_images_report_their_features_and_kernel() {
    let mut lines = Vec::new();
    for name in reference_names() {
        let sb = Image::open(&reference_image(name), &[]).sb;
        let a = sb.algorithms;
        lines.push(format!(
            "{name}: {} {:#x} {:#x} {:?} {} {:?} {:?} {:?} {:?}",
            sb.required_kernel(),
            sb.compat,
            sb.incompat,
            a.iter().collect::<Vec<Algorithm>>(),
            a.max_pcluster_blocks,
            a.lzma_dict_bytes,
            a.deflate_window_bits,
            a.zstd_window_log,
            sb.packed_nid,
        ));
    }
    assert_eq!(
        lines,
        [
            "lz4hc64: 5.13 0x7 0x3 [Lz4] 16 None None None None",
            "legacy: 5.13 0x7 0x3 [Lz4] 4 None None None None",
            "xflt: 6.4 0x17 0x41 [Lz4] 1 None None None None",
            "fragzt: 6.1 0x7 0x33 [Lz4] 16 None None None Some(Nid(116096))",
            "dedfrag: 6.1 0x7 0x23 [Lz4] 4 None None None Some(Nid(143232))",
            "zstd: 6.10 0x7 0x3 [Zstd] 256 None None Some(19) None",
            "deflate: 6.6 0x7 0x3 [Deflate] 256 None Some(15) None None",
            "lzma: 5.16 0x7 0x3 [MicroLzma] 256 Some(262144) None None None",
        ]
    );
}

#[test]
fn binary_and_linear_lookups_find_the_same_names() {
    let image = Image::open(&reference_image("lz4hc64"), &[]);
    let (directory, data) = image.directory(image.sb.root_nid);
    let mut block = Vec::new();
    let mut read = block_of(&data, image.sb.block_bits);
    let bigdir = directory.lookup(b"bigdir", &mut block, &mut read).unwrap().unwrap();
    assert_eq!(bigdir.kind, Some(FileKind::Directory));
    let (directory, data) = image.directory(bigdir.nid);
    assert!(directory.blocks() > 2);
    let mut read = block_of(&data, image.sb.block_bits);
    let names: Vec<String> = manifest()
        .iter()
        .filter_map(|entry| Some(entry.path.strip_prefix("/bigdir/")?.to_owned()))
        .chain([".".into(), "..".into()])
        .collect();
    assert!(names.len() > 500);
    for name in &names {
        let wrong = [format!("{name}0"), name[1..].to_owned(), format!("{}~", &name[..name.len() - 1])];
        for name in wrong.iter().chain([name]) {
            let fast = directory.lookup(name.as_bytes(), &mut block, &mut read).unwrap();
            let slow = directory.lookup_linear(name.as_bytes(), &mut block, &mut read).unwrap();
            assert_eq!(fast, slow, "{name}");
            assert_eq!(fast.is_some(), names.contains(name), "{name}");
        }
    }
}

#[test]
fn existing_attributes_are_found_by_name_and_absent_ones_are_not() {
    for name in reference_names() {
        let image = Image::open(&reference_image(name), &[]);
        for node in image.walk().values().filter(|node| !node.xattrs.is_empty()) {
            let xattrs = Xattrs::open(&image.bytes, &image.sb, &image.prefixes, &node.inode).unwrap();
            let get = |name: &[u8]| xattrs.get(name).unwrap();
            for (name, value) in &node.xattrs {
                assert_eq!(get(name).as_ref(), Some(value));
                assert_eq!(get(&name[..name.len() - 1]), None);
            }
            for absent in ["user.", "user.absent", "trusted.x", "security.selinux", "plain", ""] {
                assert_eq!(get(absent.as_bytes()), None);
            }
        }
    }
}
