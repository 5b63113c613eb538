//! The rules of the format, by name: findings of a check carry the name of the rule that the image breaks.
//!
//! Most rules are those of the strict check in `pagefold-image-check`, which judges bytes that readers ignore. The source
//! of each rule is a section of `docs/formats/erofs.md`, and `image check --help` lists all rules.

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Unusual, but no data is lost.
    Warning,
    /// Something cannot be read, or contradicts the format.
    Error,
}

impl Severity {
    /// Its name in output: `warning` or `error`.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A rule of the format.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The short name, such as `dir-order`.
    pub name: &'static str,
    /// The severity of a finding.
    pub severity: Severity,
    /// The section of `docs/formats/erofs.md` that has the rule.
    pub section: &'static str,
    /// The rule, as a sentence.
    pub meaning: &'static str,
}

macro_rules! rules {
    ($($id:ident $name:literal $severity:ident $section:literal $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub static $id: Rule =
                Rule { name: $name, severity: Severity::$severity, section: $section, meaning: $meaning };
        )*

        /// All rules, in the order of the format's document.
        pub static ALL: &[&Rule] = &[$(&$id),*];
    };
}

rules! {
    SB_CHECKSUM "sb-checksum" Warning "Superblock" "The superblock has a checksum.";
    SB_RESERVED "sb-reserved" Error "Superblock"
        "Reserved fields of the superblock, its extension slots and the device table are zero.";
    SB_FIELD "sb-field" Error "Superblock" "A field of a feature whose bit is not set is zero.";
    SB_NAME "sb-name" Error "Superblock" "The volume's name ends with a NUL, and only zeroes follow.";
    SB_BLOCKS "sb-blocks" Error "Superblock"
        "Everything in the image lies before the number of blocks, unless that is 0.";
    SB_END "sb-end" Error "Superblock" "The image has all bytes of its last block.";
    SB_INODES "sb-inodes" Error "Superblock" "The number of inodes is 0 or right.";
    SB_WINDOW "sb-window" Error "Superblock"
        "`u1` is not 0 in an image with compressed files: Linux takes it for an image without.";
    FEATURE_UNSET "feature-unset" Error "Features" "The bit of each feature that the image uses is set.";
    FEATURE_UNUSED "feature-unused" Warning "Features" "The image uses each feature whose bit is set.";
    ALGORITHM_UNSET "algorithm-unset" Error "Configuration records" "The bit of each used algorithm is set.";
    ALGORITHM_UNUSED "algorithm-unused" Warning "Configuration records"
        "The image uses each algorithm whose bit is set; one without use is right if all extents of compressed files are plain.";
    CFG_RECORD "cfg-record" Error "Configuration records"
        "A configuration record has the length of the table, and zeroes in its reserved bytes and before it.";
    DEVICE_OVERLAP "device-overlap" Error "Device table"
        "The devices' ranges of the shared address space overlap neither each other nor the image.";
    INODE_RESERVED "inode-reserved" Error "Inodes" "Reserved bits and fields of an inode are zero.";
    INODE_OWNER "inode-owner" Error "Inodes" "Owner and group are not 2^32 - 1, which is no valid ID.";
    INODE_NUMBER "inode-number" Warning "Inodes" "`i_ino` differs between inodes.";
    INODE_LINKS "inode-links" Error "Inodes" "The number of links is the number of names.";
    INODE_BLOCKS "inode-blocks" Error "Inodes"
        "`i_u` of a compressed inode is the number of blocks of its clusters, each cluster counted once.";
    INLINE_TAIL "inline-tail" Error "Inodes" "An inline tail does not cross the end of a block.";
    TAIL_FILL "tail-fill" Error "Inodes" "Zeroes follow the contents in the last block of a file.";
    CHUNK_FORMAT "chunk-format" Error "Chunks" "Unused bits of a chunk format are zero.";
    CHUNK_ENTRY "chunk-entry" Error "Chunks"
        "An entry names a device of the table, and its unused fields and the gap before the entries are zero.";
    DIR_BLOCK "dir-block" Error "Directories"
        "The names of a block follow the entries without gaps; the first offset is a multiple of 12.";
    DIR_ORDER "dir-order" Error "Directories" "Names ascend strictly in byte order, across blocks too.";
    DIR_DOTS "dir-dots" Error "Directories"
        "A directory has `.` (unless bit 4 of its format is set) and `..`, and they name it and its parent.";
    DIR_TYPE "dir-type" Error "Directories" "The type in an entry is that of the inode.";
    DIR_FILL "dir-fill" Error "Directories"
        "Byte 11 of an entry is zero, and so are the bytes from the last name to the end of the block.";
    XATTR_HEADER "xattr-header" Error "Attributes" "The reserved bytes of the header are zero.";
    XATTR_FILTER "xattr-filter" Error "Attributes"
        "The filter has a zero for each attribute, and a one for each other bit; without the feature it is 0.";
    XATTR_NAME "xattr-name" Error "Attributes" "Linux would accept each name, and no name occurs twice.";
    XATTR_PREFIX "xattr-prefix" Error "Attributes"
        "The name index of an attribute or a long prefix has a short prefix; a long prefix exists.";
    XATTR_FILL "xattr-fill" Error "Attributes" "Attributes and long prefixes are padded with zeroes.";
    XATTR_SHARED "xattr-shared" Error "Attributes" "The numbers of shared attributes lead into the image.";
    XATTR_ACL "xattr-acl" Error "Attributes" "Linux would accept each access control list.";
    INDEX_HEADER "index-header" Error "Compressed indexes"
        "Unused fields and bits of an index's header are zero, and so are the bytes before and after it.";
    INDEX_HEAD "index-head" Error "Compressed indexes"
        "An extent begins inside its logical cluster, the first one at byte 0, and none after the end of the file.";
    INDEX_BACK "index-back" Error "Compressed indexes"
        "The distance back leads to the head, or is 2047 if the head is further away.";
    INDEX_FORWARD "index-forward" Error "Compressed indexes"
        "The distance forward leads to the next head or to the end of the index; 2047 if that is further away.";
    INDEX_BLOCKS "index-blocks" Error "Compressed indexes"
        "A number of blocks stands after each head that may have one and is not the last entry of its extent, \
         and nowhere else; it is not 0.";
    INDEX_END "index-end" Error "Compressed indexes"
        "A PLAIN entry marks the end of a file whose last extent ends in a logical cluster that it did not begin in.";
    INDEX_PACK "index-pack" Error "Compressed indexes"
        "The address of a pack agrees with that of the last head before the pack.";
    INDEX_ENTRY "index-entry" Error "Compressed indexes"
        "Unused bits of an entry are zero, and so is the second entry of a pack that has only one.";
    INDEX_RECORD "index-record" Error "Compressed indexes"
        "Records ascend from byte 0, and their reserved bits and bytes are zero.";
    EXTENT_LIMIT "extent-limit" Error "Compressed indexes"
        "A cluster has at most 1 MiB, LZ4 clusters no more than the record allows; a compressed extent has at most \
         12 MiB, and no less than its cluster takes, unless it is marked as a prefix or ends the file; a plain one has \
         no more than its cluster.";
    INLINE_CLUSTER "inline-cluster" Error "Compressed indexes"
        "An inline cluster has bytes, does not cross the end of a block, and is not plain in an interlaced file.";
    INTERLACED "interlaced" Error "Compressed indexes" "An interlaced extent has one block.";
    FRAGMENT_RANGE "fragment-range" Error "Compressed indexes"
        "A fragment lies in the packed file, which has no fragments itself.";
    STREAM_PADDING "stream-padding" Error "Clusters"
        "Less than a block of zeroes precedes a stream; a stream does not begin with a zero.";
    PLAIN_FILL "plain-fill" Error "Clusters" "Zeroes fill the rest of a plain cluster that one extent uses.";
    LZ4_WINDOW "lz4-window" Error "Clusters" "Matches of LZ4 reach back no further than the window.";
    LZMA_FIRST "lzma-first" Error "Clusters" "The first byte of MicroLZMA is the complement of valid properties.";
    DEFLATE_WINDOW "deflate-window" Error "Clusters" "Matches of deflate reach back no further than the window.";
    ZSTD_FRAME "zstd-frame" Error "Clusters"
        "A cluster is one frame, with its content size, a window within the record's, and no dictionary.";
    SPACE_OVERLAP "space-overlap" Error "The whole"
        "Metadata and clusters overlap nothing; several extents may use the same whole cluster.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sections_exist() {
        let page = include_str!("../../../docs/formats/erofs.md");
        for (n, rule) in ALL.iter().enumerate() {
            assert!(ALL[..n].iter().all(|other| other.name != rule.name), "{}", rule.name);
            assert!(page.lines().any(|line| line.trim_start_matches('#').trim() == rule.section), "{rule:?}");
        }
    }
}
