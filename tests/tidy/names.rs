//! The definition of a name: the modules of a crate as its `mod` lines build them, with what each
//! defines and imports.
//!
//! An import through a re-export leads to the file that defines the name, however many re-exports
//! lie between.

use std::collections::{BTreeMap, BTreeSet};

use crate::reader::{Lines, Source, is_name, split, tokens_at};

/// Index of a module in [`Crate::modules`].
pub(crate) type ModuleId = usize;

pub(crate) const ROOT: ModuleId = 0;

pub(crate) struct Crate<'a> {
    pub(crate) sources: &'a [Source],
    modules: Vec<Module>,
    /// Every path of the production code, in the order of the files.
    pub(crate) written: Vec<Written>,
    /// The functions, types, constants and `impl` blocks of the production code, in the order of the
    /// files: those in the body of a function aside.
    pub(crate) pieces: Vec<Piece>,
}

/// An item of `module`, by the place of its first word in the code of its file.
pub(crate) struct Piece {
    pub(crate) source: usize,
    pub(crate) module: ModuleId,
    pub(crate) at: usize,
}

struct Module {
    /// Index of the file that the module stands in.
    source: usize,
    parent: ModuleId,
    /// The modules of one name: several where each checker has its own.
    children: BTreeMap<String, Vec<ModuleId>>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
}

struct Import {
    path: Vec<String>,
    /// The module's name for it; `*` for a glob.
    name: String,
}

/// A path in the code of `module`, by `use` or in place.
pub(crate) struct Written {
    pub(crate) source: usize,
    pub(crate) module: ModuleId,
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
}

enum Target {
    Module(ModuleId),
    /// Something of this name that is defined in the file with this index.
    Item(usize, String),
}

/// The target of a path.
#[derive(Default)]
pub(crate) struct Found {
    /// The files that define what it names: more than one where the checkers have their own.
    pub(crate) sources: BTreeSet<usize>,
    /// The items that they define, by the name that each has there.
    pub(crate) items: BTreeSet<(usize, String)>,
    /// The names that were looked up on the way, each with the module that they were looked up in.
    pub(crate) steps: BTreeSet<(ModuleId, String)>,
}

impl<'a> Crate<'a> {
    pub(crate) fn read(sources: &'a [Source]) -> Crate<'a> {
        let mut of = Crate {
            sources,
            modules: Vec::new(),
            written: Vec::new(),
            pieces: Vec::new(),
        };
        let lib = of.source("src/lib.rs").expect("a crate has src/lib.rs");
        of.add_module(lib, ROOT);
        of.read_file(lib, ROOT, "src");
        let read: BTreeSet<usize> = of.modules.iter().map(|module| module.source).collect();
        for (at, source) in sources.iter().enumerate() {
            assert!(
                read.contains(&at) || source.is_in("tests"),
                "{}: no `mod` line leads here",
                source.path
            );
        }
        of
    }

    /// The module of this name in the root.
    pub(crate) fn module(&self, name: &str) -> Option<ModuleId> {
        self.modules[ROOT].children.get(name)?.first().copied()
    }

    /// The modules in a module, each with its name.
    pub(crate) fn children(&self, module: ModuleId) -> BTreeMap<ModuleId, &str> {
        let children = &self.modules[module].children;
        children
            .iter()
            .flat_map(|(name, ids)| ids.iter().map(|&id| (id, name.as_str())))
            .collect()
    }

    /// The root has a module of this name.
    pub(crate) fn is_module_of_root(&self, name: &str) -> bool {
        self.modules[ROOT].children.contains_key(name)
    }

    fn source(&self, path: &str) -> Option<usize> {
        self.sources.iter().position(|source| source.path == path)
    }

    fn add_module(&mut self, source: usize, parent: ModuleId) -> ModuleId {
        let none = Module {
            source,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: Vec::new(),
        };
        self.modules.push(none);
        self.modules.len() - 1
    }

    fn add_child(&mut self, source: usize, parent: ModuleId, name: &str) -> ModuleId {
        let child = self.add_module(source, parent);
        self.modules[parent]
            .children
            .entry(name.to_owned())
            .or_default()
            .push(child);
        child
    }

    /// Reads a file and those that its `mod` lines name; `folder` is where those lie.
    fn read_file(&mut self, source: usize, module: ModuleId, folder: &str) {
        let text = self.sources[source].production();
        let (code, _) = split(text);
        let tokens = tokens_at(&code);
        let lines = Lines::of(&code);
        let mut within = vec![(module, 0)];
        let mut depth = 0;
        let mut at = 0;
        while at < tokens.len() {
            let word = |at: usize| tokens.get(at).map_or("", |(_, token)| token);
            let before = |back: usize| at.checked_sub(back).map_or("", word);
            let (module, body) = *within.last().expect("the file itself");
            match (word(at), word(at + 1), word(at + 2)) {
                ("{", ..) => depth += 1,
                ("}", ..) => {
                    depth -= 1;
                    within.retain(|&(_, body)| body <= depth);
                }
                ("use", next, _) if next != "<" => {
                    let mut found = Vec::new();
                    at = read_import(&tokens, at + 1, &[], &mut found);
                    for (offset, import) in found {
                        let path = import.path.clone();
                        self.written.push(Written {
                            source,
                            module,
                            line: lines.number(offset),
                            path,
                        });
                        self.modules[module].imports.push(import);
                    }
                }
                ("mod", name, "{") => {
                    depth += 1;
                    within.push((self.add_child(source, module, name), depth));
                    at += 2;
                }
                ("mod", name, ";") if body == 0 => {
                    let from = code[..tokens[at].0].rfind([';', '}', '{']).unwrap_or(0);
                    self.read_child(
                        module,
                        name,
                        folder,
                        &self.sources[source].path,
                        &text[from..tokens[at].0],
                    );
                }
                ("macro_rules", "!", name) => {
                    self.modules[module].items.insert(name.to_owned());
                }
                ("per_thread", "!", "{" | "(") if depth == body => {
                    let named = (at + 3..tokens.len()).find(|&at| word(at + 1) == ":");
                    let items = &mut self.modules[module].items;
                    items.extend(named.map(|at| word(at).to_owned()));
                    let at = tokens[at].0;
                    self.pieces.push(Piece { source, module, at });
                }
                ("impl", ..)
                    if depth == body
                        && matches!(before(1), "" | "}" | "{" | ";" | "]" | "unsafe" | ")") =>
                {
                    let at = tokens[at].0;
                    self.pieces.push(Piece { source, module, at });
                }
                // Not `&'static Object` nor `*const Object`.
                (kind, name, _)
                    if depth == body
                        && is_definition(kind, name)
                        && !matches!(before(1), "'" | "*") =>
                {
                    self.modules[module].items.insert(name.to_owned());
                    let at = tokens[at].0;
                    self.pieces.push(Piece { source, module, at });
                }
                (first, "::", _)
                    if is_name(first)
                        && !matches!(before(1), "::" | ".")
                        && (before(1), before(2)) != ("in", "(") =>
                {
                    let line = lines.number(tokens[at].0);
                    let mut path = vec![first.to_owned()];
                    while word(at + 1) == "::" && is_name(word(at + 2)) {
                        path.push(word(at + 2).to_owned());
                        at += 2;
                    }
                    self.written.push(Written {
                        source,
                        module,
                        line,
                        path,
                    });
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads the file of a `mod` line, or the files that its attributes name.
    fn read_child(
        &mut self,
        module: ModuleId,
        name: &str,
        folder: &str,
        beside: &str,
        attributes: &str,
    ) {
        let own = &beside[..beside.rfind('/').unwrap_or(0)];
        let named = attributes
            .split("path = \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        let named: Vec<String> = named.map(|path| format!("{own}/{path}")).collect();
        let found: Vec<(String, String)> = if named.is_empty() {
            let below = format!("{folder}/{name}");
            vec![
                (format!("{below}.rs"), below.clone()),
                (format!("{below}/mod.rs"), below),
            ]
        } else {
            let folder = |path: &str| path[..path.rfind('/').unwrap_or(0)].to_owned();
            named
                .into_iter()
                .map(|path| (path.clone(), folder(&path)))
                .collect()
        };
        for (path, folder) in found {
            let Some(source) = self.source(&path) else {
                continue;
            };
            if !self.sources[source].is_in("tests") {
                let child = self.add_child(source, module, name);
                self.read_file(source, child, &folder);
            }
        }
    }

    /// The target of a path that is written in `module`. Nowhere if it starts outside of the crate.
    pub(crate) fn find(&self, module: ModuleId, path: &[String]) -> Found {
        let mut found = Found::default();
        for target in self.resolve(module, path, &mut Vec::new(), &mut found.steps) {
            found.sources.insert(match &target {
                Target::Module(module) => self.modules[*module].source,
                Target::Item(source, _) => *source,
            });
            if let Target::Item(source, name) = target {
                found.items.insert((source, name));
            }
        }
        found
    }

    /// `active` are the imports that are being followed: one that leads to itself is no way.
    fn resolve(
        &self,
        module: ModuleId,
        path: &[String],
        active: &mut Vec<(ModuleId, usize)>,
        steps: &mut BTreeSet<(ModuleId, String)>,
    ) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else {
            return vec![Target::Module(module)];
        };
        let mut targets = match self.place(module, first) {
            Some(start) => vec![Target::Module(start)],
            None => self.look_up(module, first, active, steps),
        };
        for name in rest.iter().filter(|name| *name != "*") {
            let mut next = Vec::new();
            for target in targets {
                let Target::Module(module) = target else {
                    next.push(target);
                    continue;
                };
                if let Some(place) = self.place(module, name) {
                    next.push(Target::Module(place));
                    continue;
                }
                steps.insert((module, name.clone()));
                let found = self.look_up(module, name, active, steps);
                // If no line defines it, a macro does, in the file itself.
                let by_macro = found
                    .is_empty()
                    .then(|| Target::Item(self.modules[module].source, name.clone()));
                next.extend(found.into_iter().chain(by_macro));
            }
            targets = next;
        }
        targets
    }

    /// The module that `crate`, `self` or `super` names.
    fn place(&self, module: ModuleId, name: &str) -> Option<ModuleId> {
        match name {
            "crate" => Some(ROOT),
            "self" => Some(module),
            "super" => Some(self.modules[module].parent),
            _ => None,
        }
    }

    fn look_up(
        &self,
        module: ModuleId,
        name: &str,
        active: &mut Vec<(ModuleId, usize)>,
        steps: &mut BTreeSet<(ModuleId, String)>,
    ) -> Vec<Target> {
        let of = &self.modules[module];
        let mut found: Vec<Target> = of
            .children
            .get(name)
            .into_iter()
            .flatten()
            .copied()
            .map(Target::Module)
            .collect();
        found.extend(
            of.items
                .contains(name)
                .then(|| Target::Item(of.source, name.to_owned())),
        );
        for glob in [false, true] {
            if glob && !found.is_empty() {
                break;
            }
            let wanted = if glob { "*" } else { name };
            for (at, import) in of
                .imports
                .iter()
                .enumerate()
                .filter(|(_, import)| import.name == wanted)
            {
                if active.contains(&(module, at)) {
                    continue;
                }
                active.push((module, at));
                let to = self.resolve(module, &import.path, active, steps);
                for target in to {
                    match target {
                        Target::Module(of) if glob => {
                            found.extend(self.look_up(of, name, active, steps))
                        }
                        Target::Item(..) if glob => {}
                        _ => found.push(target),
                    }
                }
                active.pop();
            }
        }
        found
    }
}

fn is_definition(kind: &str, name: &str) -> bool {
    matches!(
        kind,
        "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union"
    ) && is_name(name)
        && !matches!(name, "fn" | "unsafe" | "mut" | "async" | "extern" | "_")
}

/// The type of an `impl` block, from behind its first word on: the last path before the block's
/// condition or brace, and nothing where that is no path.
pub(crate) fn implemented(tokens: &[(usize, &str)]) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    let mut depth = 0;
    let mut whole = false;
    let mut before = "";
    for &(_, token) in tokens {
        match token {
            "<" | "(" | "[" => depth += 1,
            // The head of an arrow closes nothing.
            ">" if before == "-" => {}
            ">" | ")" | "]" => depth -= 1,
            "{" | "where" | ";" => break,
            _ if depth > 0 => {}
            "for" => (path, whole) = (Vec::new(), false),
            "::" => whole = false,
            // Not `dyn Trait`, which is no type of a file's.
            name if is_name(name)
                && before != "'"
                && !whole
                && !matches!(name, "mut" | "const") =>
            {
                path.push(name.to_owned());
                whole = true;
            }
            _ => {}
        }
        before = token;
    }
    path
}

/// Reads one tree of a `use` from the token at `at` on, with where each leaf stands, and returns
/// where it ends.
fn read_import(
    tokens: &[(usize, &str)],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(usize, Import)>,
) -> usize {
    let word = |at: usize| tokens.get(at).map_or("", |(_, token)| token);
    let mut path = prefix.to_vec();
    let start = tokens.get(at).map_or(0, |(offset, _)| *offset);
    loop {
        match word(at) {
            "{" => {
                at += 1;
                while !matches!(word(at), "}" | "") {
                    at = read_import(tokens, at, &path, found);
                    at += usize::from(word(at) == ",");
                }
                return at + 1;
            }
            // `::name` starts outside of the crate.
            "::" if path.is_empty() => path.push(String::new()),
            "::" => {}
            "self" if !path.is_empty() => {}
            name if is_name(name) || name == "*" => path.push(name.to_owned()),
            _ => return at,
        }
        at += 1;
        if word(at) != "::" && !(word(at) == "{" && word(at - 1) == "::") && word(at - 1) != "::" {
            break;
        }
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if word(at) == "as" {
        word(at + 1).clone_into(&mut name);
        at += 2;
    }
    found.push((start, Import { path, name }));
    at
}
