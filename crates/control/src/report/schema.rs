//! The JSON Schemas of the commands' JSON, made from the types of the reports (`docs/json/*.schema.json`).

use super::disk::{CreatedDisk, DiskList, ShownDisk};
use super::image::{
    BuildReport, CheckReport, CopyReport, DigestReport, Entries, ExtractReport, FileReport, ImageReport,
    LayerCacheReport, PushReport,
};
use super::mount::{MountList, MountStats};
use super::recompress::RecompressPassReport;
use super::saved::{CleanReport, SaveReport, SavedDisk};
use super::writeback::PassReport;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The commands with `--json`, and the schemas of their JSON.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("disk-create", schema::<CreatedDisk>()),
        ("disk-list", schema::<DiskList>()),
        ("disk-show", schema::<ShownDisk>()),
        ("disk-writeback", schema::<PassReport>()),
        ("disk-recompress", schema::<RecompressPassReport>()),
        ("disk-save", schema::<SaveReport>()),
        ("disk-saved", schema::<SavedDisk>()),
        ("disk-saved-clean", schema::<CleanReport>()),
        ("image-ls", schema::<Entries>()),
        ("image-show", schema::<ImageReport>()),
        ("image-show-path", schema::<FileReport>()),
        ("image-mounts", schema::<MountList>()),
        ("image-stats", schema::<MountStats>()),
        ("image-build", schema::<BuildReport>()),
        ("image-build-layer-cache", schema::<LayerCacheReport>()),
        ("image-check", schema::<CheckReport>()),
        ("image-extract", schema::<ExtractReport>()),
        ("image-copy", schema::<CopyReport>()),
        ("image-digest", schema::<DigestReport>()),
        ("image-push", schema::<PushReport>()),
    ]
}

/// The schema of a document: the fields of `T` and the version.
fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let version = json!({
        "description": "Grows when a field is removed or changes its meaning; later versions may add fields without that.",
        "const": super::SCHEMA_VERSION,
    });
    schema["properties"]["schema_version"] = version;
    if let Some(required) = schema["required"].as_array_mut() {
        required.insert(0, json!("schema_version"));
    }
    schema
}
