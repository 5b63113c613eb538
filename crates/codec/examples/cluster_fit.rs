//! Measures the encoders of clusters on files that are cut into clusters as an image's writer does.
//!
//! `cluster_fit CLUSTER_BYTES CONFIG... -- FILE...` prints for each configuration the time and the bytes of clusters
//! that `fit` needs for the files, and the time and the bytes when the same pieces are compressed whole, by the same
//! encoder and without a limit. A configuration is `lz4`, `lz4hc:9`, `zstd:12`, with `@WINDOW` where it has one.

#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]

use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use std::time::{Duration, Instant};

fn config(text: &str, cluster: usize) -> EncoderConfig {
    let (name, window) = text.split_once('@').map_or((text, None), |(n, w)| (n, Some(w.parse().unwrap())));
    let (name, level) = name.split_once(':').unwrap_or((name, "0"));
    let level = level.parse().unwrap();
    match name {
        "lz4" => EncoderConfig::Lz4 { window_bytes: window.unwrap_or(65535) },
        "lz4hc" => EncoderConfig::Lz4Hc { window_bytes: window.unwrap_or(65535), level },
        "zstd" => {
            let max_window_bytes = window.unwrap_or((8 * cluster as u32).clamp(1 << 15, 1 << 20));
            EncoderConfig::Zstd { max_window_bytes, level }
        }
        "deflate" => EncoderConfig::Deflate { level },
        "microlzma" => {
            let dict_bytes = window.unwrap_or((4 * cluster as u32).clamp(1 << 15, 8 << 20));
            EncoderConfig::MicroLzma { dict_bytes, level, extreme: false }
        }
        _ => panic!("no configuration {text}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let split = arguments.iter().position(|a| a == "--").unwrap();
    let cluster: usize = arguments[0].parse().unwrap();
    let files: Vec<Vec<u8>> = arguments[split + 1..]
        .iter()
        .filter_map(|f| std::fs::read(f).ok())
        .filter(|f| !f.is_empty())
        .collect();
    let total: usize = files.iter().map(Vec::len).sum();
    println!("{} files, {total} bytes, clusters of {cluster}", files.len());
    for text in &arguments[1..split] {
        measure(text, &config(text, cluster), &files, cluster);
    }
}

fn measure(text: &str, config: &EncoderConfig, files: &[Vec<u8>], cluster: usize) {
    let mut encoder = Encoder::new(config).unwrap();
    let (mut dst, mut bare) = (vec![0; cluster], vec![0; 16 << 20]);
    let (mut fit_time, mut bare_time) = (Duration::ZERO, Duration::ZERO);
    let (mut clusters, mut blocks, mut slack, mut consumed, mut bare_bytes, mut stored) =
        (0u64, 0, 0, 0, 0, 0);
    for file in files {
        let mut rest = &file[..];
        while !rest.is_empty() {
            let begin = Instant::now();
            let fit = encoder.fit(rest, &mut dst).unwrap();
            fit_time += begin.elapsed();
            let (now, later) = rest.split_at(fit.consumed_bytes);
            let begin = Instant::now();
            bare_bytes += encoder.whole(now, &mut bare).unwrap().unwrap();
            bare_time += begin.elapsed();
            clusters += 1;
            consumed += fit.consumed_bytes;
            // A cluster of the end of a file has only the blocks that it needs; a plain one is stored uncompressed.
            stored += fit.written_bytes.min(fit.consumed_bytes).div_ceil(4096) * 4096;
            blocks += fit.written_bytes;
            if !later.is_empty() {
                slack += cluster - fit.written_bytes;
            }
            rest = later;
        }
    }
    println!(
        "{text:<16} fit {:>7.3} s  bare {:>7.3} s  x{:.3}  clusters {clusters}  stored {stored}  written {blocks}  \
         bare {bare_bytes}  x{:.4}  slack {:.3} %  passes {:.3}",
        fit_time.as_secs_f64(),
        bare_time.as_secs_f64(),
        fit_time.as_secs_f64() / bare_time.as_secs_f64(),
        blocks as f64 / bare_bytes as f64,
        100.0 * slack as f64 / blocks as f64,
        (encoder.input_bytes() as f64 - consumed as f64) / consumed as f64,
    );
}
