//! The end-to-end tests of the commands, except those that boot a virtual machine. They are one program, because
//! linking many takes longer.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod confinement;
mod confinement_libc;
mod disk_backing;
mod disk_block_state;
#[cfg(feature = "buckets")]
mod disk_bucket;
#[cfg(feature = "buckets")]
mod disk_bucket_publish;
mod disk_confinement;
mod disk_databases;
mod disk_freeze;
mod disk_gone;
mod disk_instances;
mod disk_life_cycle;
mod disk_limits;
mod disk_loop;
mod disk_nbd;
mod disk_output;
mod disk_pairs;
mod disk_recompress;
mod disk_restart;
mod disk_restore;
mod disk_run;
mod disk_save;
mod disk_save_incremental;
mod disk_save_power;
mod disk_unit;
mod disk_writeback;
mod docs;
mod guides;
mod hostile;
mod image_build;
mod image_build_attributes;
mod image_build_outputs;
mod image_build_sources;
mod image_build_unreadable;
mod image_cache;
mod image_containerd;
mod image_copy;
mod image_devices;
mod image_digest;
mod image_download;
mod image_extract;
mod image_fstab;
mod image_layers;
mod image_limits;
mod image_merge;
mod image_model;
mod image_mount;
mod image_mounts;
mod image_offset;
mod image_pairs;
mod image_proxies;
mod image_push;
mod image_remote;
mod image_restart;
mod image_show;
mod image_sparse;
mod image_startup;
mod image_stores;
mod image_tar;
mod image_tools;
/// The reference images and the builder of handmade images, from the tests of `pagefold-image`.
#[path = "../../../image/tests/support/mod.rs"]
mod images;
mod json;
mod keeper;
mod mkfs_erofs;
mod mkfs_index;
mod odd_paths;
mod output;
#[path = "../../../image-build/tests/support/random_tree.rs"]
mod random_tree;
mod random_trees;
#[path = "../support/mod.rs"]
mod support;
mod user_namespace;
