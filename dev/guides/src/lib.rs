//! Compiles and runs the Rust examples of `README.md` and of the guides in `docs/`, as documentation tests.
//!
//! This is a separate crate because the examples use several crates, and none of these depends on all others. The
//! examples run in this folder, which has the image `app.erofs` that they open. The test `guides` of the binary runs
//! the commands of the same documents, and fails if one of them is missing here. A test here looks for the files that
//! `ARCHITECTURE.md` names.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/disk.md")]
struct Disk;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image.md")]
struct Image;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/build.md")]
struct ImageBuild;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/check.md")]
struct ImageCheck;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/erofs-utils.md")]
struct ImageErofsUtils;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/extract.md")]
struct ImageExtract;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/mount.md")]
struct ImageMount;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image/servers.md")]
struct ImageServers;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/memory.md")]
struct Memory;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference.md")]
struct Reference;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/zram.md")]
struct Zram;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Collects the files and folders below `folder`, relative to the folder of the crates and without `src`.
    fn collect(folder: &Path, shown: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let shown = if name == "src" { shown.to_string() } else { format!("{shown}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                collect(&entry.path(), &shown, found);
            }
            found.push(shown);
        }
    }

    #[test]
    fn every_file_that_the_map_of_the_code_names_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let map = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
        let mut found = Vec::new();
        collect(&root.join("crates"), "", &mut found);
        let (ours, table) = map.split_once("\n## In Linux").unwrap();
        // The other columns of this table name files of Linux.
        let column = table.lines().filter_map(|row| row.strip_suffix(" |")?.rsplit_once(" | "));
        let ours = [ours.to_string()].into_iter().chain(column.map(|(_, here)| here.to_string()));
        let names: Vec<String> = ours
            .flat_map(|text| text.split('`').skip(1).step_by(2).map(str::to_string).collect::<Vec<_>>())
            .collect();
        let files = names.iter().filter(|name| name.contains('/') || name.ends_with(".rs"));
        let mut count = 0;
        for name in files.filter(|name| !name.starts_with('/')) {
            let (path, end) = (name.replace("/src", ""), name.trim_end_matches('/'));
            let is_there =
                found.iter().any(|file| file.ends_with(&format!("/{}", path.trim_end_matches('/'))));
            assert!(
                is_there || root.join(end).exists(),
                "ARCHITECTURE.md names {name}, which does not exist"
            );
            count += 1;
        }
        assert!(count > 100, "{count}");
    }
}
