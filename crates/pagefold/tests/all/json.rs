//! The JSON of the commands agrees with the JSON Schemas in `docs/json`, and these with the types.

use crate::image_mount::{MountSandbox, read_all};
use crate::support::Sandbox;
use crate::support::writeback::{connect, pages, write};
use pagefold_control::report::schema;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn folder() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json").into()
}

fn fixture() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/app.erofs").into()
}

#[test]
fn the_schemas_are_those_of_the_types() {
    let mut names: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for (command, schema) in schema::all() {
        let name = format!("{command}.schema.json");
        names.retain(|other| *other != name);
        let text = std::fs::read_to_string(folder().join(&name)).unwrap();
        let is_current = serde_json::from_str::<Value>(&text).unwrap() == schema;
        assert!(is_current, "{name} is out of date; crates/control/examples/schemas.rs writes it");
        assert_eq!(undescribed(&schema, &name), Vec::<String>::new());
    }
    assert_eq!(names, Vec::<String>::new(), "files without a command");
}

/// The fields of a schema that have no description.
fn undescribed(schema: &Value, at: &str) -> Vec<String> {
    let Some(object) = schema.as_object() else { return Vec::new() };
    let fields = schema["properties"].as_object().into_iter().flatten();
    let missing = fields.filter(|(_, field)| field["description"].is_null());
    let mut all: Vec<_> = missing.map(|(name, _)| format!("{at}/{name}")).collect();
    all.extend(object.iter().flat_map(|(name, value)| undescribed(value, &format!("{at}/{name}"))));
    all
}

/// A schema and its definitions.
pub struct Schema(Value);

impl Schema {
    pub fn of(command: &str) -> Self {
        let (_, schema) = schema::all().into_iter().find(|(name, _)| *name == command).unwrap();
        Schema(schema)
    }

    pub fn check(&self, document: &str) {
        let value: Value = serde_json::from_str(document).unwrap();
        let faults = [self.faults(&self.0, &value, ""), self.unknown(&self.0, &value, "")].concat();
        assert_eq!(faults, Vec::<String>::new(), "{document}");
    }

    fn resolved<'s>(&'s self, schema: &'s Value) -> &'s Value {
        match schema["$ref"].as_str() {
            Some(path) => self.0.pointer(path.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    fn branches(schema: &Value) -> Option<&Vec<Value>> {
        schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array())
    }

    /// The places at which a value has another type than the schema, or lacks a field.
    fn faults(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let schema = self.resolved(schema);
        let has_type = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "null" => value.is_null(),
            _ => panic!("{at}: type {name}"),
        };
        let is_right = match &schema["type"] {
            Value::Null => true,
            Value::String(name) => has_type(name),
            names => names.as_array().unwrap().iter().any(|name| has_type(name.as_str().unwrap())),
        };
        let is_constant = schema.get("const").is_none_or(|constant| constant == value);
        if !is_right || !is_constant {
            return vec![format!("{at} is {value}")];
        }
        let mut faults = Vec::new();
        if let Some(object) = value.as_object() {
            let required = schema["required"].as_array().into_iter().flatten();
            let missing = required.filter(|name| !object.contains_key(name.as_str().unwrap()));
            faults.extend(missing.map(|name| format!("{at} has no {name}")));
            for (name, value) in object {
                let field = schema["properties"].get(name).or(schema.get("additionalProperties"));
                let at = format!("{at}/{name}");
                faults.extend(field.into_iter().flat_map(|field| self.faults(field, value, &at)));
            }
        }
        for (n, value) in value.as_array().into_iter().flatten().enumerate() {
            faults.extend(self.faults(&schema["items"], value, &format!("{at}/{n}")));
        }
        let of_branches = Self::branches(schema).into_iter().flatten();
        let of_branches = of_branches.map(|branch| self.faults(branch, value, at));
        faults.extend(of_branches.min_by_key(Vec::len).unwrap_or_default());
        faults
    }

    /// The places of fields that the schema does not have.
    fn unknown(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(object) = value.as_object() {
            let mut fields = BTreeMap::new();
            let mut others = Vec::new();
            self.fields(schema, &mut fields, &mut others);
            for (name, value) in object {
                let at = format!("{at}/{name}");
                let schemas = fields.get(name).unwrap_or(&others);
                let found = schemas.iter().map(|schema| self.unknown(schema, value, &at));
                faults.extend(found.min_by_key(Vec::len).unwrap_or_else(|| vec![at.clone()]));
            }
        }
        let items = &self.resolved(schema)["items"];
        for (n, value) in value.as_array().into_iter().flatten().enumerate() {
            faults.extend(self.unknown(items, value, &format!("{at}/{n}")));
        }
        faults
    }

    /// Collects the fields of a schema and its branches, and the schemas of other names.
    fn fields<'s>(
        &'s self,
        schema: &'s Value,
        fields: &mut BTreeMap<String, Vec<&'s Value>>,
        others: &mut Vec<&'s Value>,
    ) {
        let schema = self.resolved(schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            fields.entry(name.clone()).or_default().push(field);
        }
        others.extend(schema.get("additionalProperties"));
        for branch in Self::branches(schema).into_iter().flatten() {
            self.fields(branch, fields, others);
        }
    }
}

#[test]
#[should_panic(expected = "/size_bytes is \\\"1\\\"")]
fn a_field_of_another_type_is_a_fault() {
    let document = r#"{"schema_version": 1, "name": "x", "device": "y", "export": "nbd", "size_bytes": "1"}"#;
    Schema::of("disk-create").check(document);
}

#[test]
#[should_panic(expected = "/more")]
fn a_field_that_the_schema_lacks_is_a_fault() {
    let document =
        r#"{"schema_version": 1, "name": "x", "device": "y", "export": "nbd", "size_bytes": 1, "more": {}}"#;
    Schema::of("disk-create").check(document);
}

#[test]
fn disk_commands_print_what_their_schemas_say() {
    let s = Sandbox::new();
    let backing = s.path("backing");
    let words = format!("--name x --backing {} --recompress-codec zstd --json", backing.display());
    Schema::of("disk-create").check(&s.ok(&format!("disk create -q --export nbd --size 1M {words}")));
    s.ok("disk create -q --export nbd --size 1M --name y");
    write(&mut connect(&s), &pages(16, 1));
    Schema::of("disk-list").check(&s.ok("disk list --json"));
    Schema::of("disk-show").check(&s.ok("disk show y --json"));
    Schema::of("disk-show").check(&s.ok("disk show x --classes --json"));
    Schema::of("disk-recompress").check(&s.ok("disk recompress x --json"));
    Schema::of("disk-writeback").check(&s.ok("disk writeback x --all --json"));
    Schema::of("disk-show").check(&s.ok("disk show x --json"));
    let saved = s.path("saved");
    Schema::of("disk-save").check(&s.ok(&format!("disk save x {} --json", saved.display())));
    Schema::of("disk-saved").check(&s.ok(&format!("disk saved {} --check --json", saved.display())));
}

#[test]
fn image_commands_print_what_their_schemas_say() {
    let s = Sandbox::new();
    let [tree, image, out] = ["tree", "built.erofs", "out"].map(|name| s.path(name));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("text"), "text ".repeat(30_000)).unwrap();
    std::os::unix::fs::symlink("text", tree.join("link")).unwrap();
    let built = s.ok(&format!("image build --json {} {}", tree.display(), image.display()));
    Schema::of("image-build").check(&built);
    Schema::of("image-extract").check(&s.ok(&format!(
        "image extract --json {} {}",
        image.display(),
        out.display()
    )));
    Schema::of("image-copy").check(&s.ok(&format!(
        "image copy --json {} {}",
        image.display(),
        s.path("copy").display()
    )));
    Schema::of("image-digest").check(&s.ok(&format!("image digest --json {}", image.display())));
    for image in [image, fixture()] {
        let image = image.display();
        Schema::of("image-ls").check(&s.ok(&format!("image ls -R --json {image}")));
        Schema::of("image-show").check(&s.ok(&format!("image show --json {image}")));
        Schema::of("image-check").check(&s.ok(&format!("image check --json {image}")));
        let all: Value = serde_json::from_str(&s.ok(&format!("image ls -R --json {image}"))).unwrap();
        for entry in all["entries"].as_array().unwrap() {
            let path = entry["path"].as_str().unwrap();
            Schema::of("image-show-path").check(&s.ok(&format!("image show --json {image} {path}")));
        }
    }
    let damaged = s.path("damaged.erofs");
    let bytes = std::fs::read(fixture()).unwrap();
    std::fs::write(&damaged, &bytes[..bytes.len() - 4096]).unwrap();
    let found = s.run(&format!("image check --json {}", damaged.display())).out;
    assert!(found.contains("\"severity\""), "{found}");
    Schema::of("image-check").check(&found);
}

#[test]
fn commands_on_mounts_print_what_their_schemas_say() {
    let Some(s) = MountSandbox::new("commands_on_mounts_print_what_their_schemas_say") else { return };
    s.ok(&s.words("mount", "--memory 8M"));
    read_all(&s.at);
    Schema::of("image-mounts").check(&s.ok("image mounts --json"));
    Schema::of("image-stats").check(&s.ok(&s.words("stats", "--json")));
}
