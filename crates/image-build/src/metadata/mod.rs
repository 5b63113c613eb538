//! The metadata of an image: inodes, directories, attributes, and where they are placed.
//!
//! | module | contents |
//! |---|---|
//! | `space` | the area of inodes: records of 32 bytes and more, placed so that inline ends stay within a block |
//! | `inode` | the record of an inode, compact or extended |
//! | `directory` | blocks of entries |
//! | `xattr` | attributes after an inode, and those that inodes share |
//! | `prefixes` | the choice of long prefixes of their names |

pub mod directory;
pub mod inode;
pub mod prefixes;
pub mod space;
pub mod xattr;
