#![doc = include_str!("../README.md")]

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, Result, parse_macro_input, parse_quote};

/// Implements `memcg::Weigh`: the sum of the weights of all fields. Each type parameter has to be
/// `Weigh`.
///
/// * `#[weigh(skip)]`: the field counts as nothing, and its type need not be `Weigh`.
/// * `#[weigh(owned)]`: the field is an `Arc` or `Rc` whose one owner this value is. The value
///   behind it counts here, with its own size.
///
/// ```
/// use memcg::Weigh;
///
/// #[derive(Weigh)]
/// enum Message<T> {
///     Ping,
///     Rows(Vec<T>),
///     Named { name: String, number: u64 },
/// }
///
/// assert_eq!(Message::<u32>::Ping.weigh(), 0);
/// assert_eq!(Message::Rows(vec![1_u32, 2, 3]).weigh(), 12);
/// assert_eq!(Message::<u32>::Named { name: "acme".into(), number: 1 }.weigh(), 4);
/// ```
#[proc_macro_derive(Weigh, attributes(weigh))]
pub fn derive_weigh(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// The way in which a field counts.
enum Counts {
    Weight,
    Owned,
    Nothing,
}

impl Counts {
    fn of(field: &Field) -> Result<Counts> {
        let mut counts = Counts::Weight;
        for attribute in field
            .attrs
            .iter()
            .filter(|attribute| attribute.path().is_ident("weigh"))
        {
            attribute.parse_nested_meta(|meta| {
                counts = match () {
                    () if meta.path.is_ident("skip") => Counts::Nothing,
                    () if meta.path.is_ident("owned") => Counts::Owned,
                    () => return Err(meta.error("`#[weigh(skip)]` or `#[weigh(owned)]`")),
                };
                Ok(())
            })?;
        }
        Ok(counts)
    }
}

/// The code that the macro writes for the fields of a struct or variant.
struct Weights {
    /// Binds the fields that count.
    pattern: TokenStream,
    sum: TokenStream,
    /// For each of them: true if its type holds nothing.
    holds_nothing: Vec<TokenStream>,
}

impl Weights {
    fn of(path: &TokenStream, fields: &Fields) -> Result<Weights> {
        let mut bound = Vec::new();
        let mut sum = quote!(0_usize);
        let mut holds_nothing = Vec::new();
        for (at, field) in fields.iter().enumerate() {
            let name = format_ident!("field_{at}");
            let of_type = &field.ty;
            let weight = match Counts::of(field)? {
                Counts::Nothing => continue,
                Counts::Weight => {
                    holds_nothing.push(quote!(<#of_type as ::memcg::Weigh>::HOLDS_NOTHING));
                    quote!(::memcg::Weigh::weigh(#name))
                }
                Counts::Owned => {
                    holds_nothing.push(quote!(false));
                    quote!(::core::mem::size_of_val(&**#name).saturating_add(::memcg::Weigh::weigh(&**#name)))
                }
            };
            sum = quote!(#sum.saturating_add(#weight));
            let member = field
                .ident
                .clone()
                .map_or_else(|| syn::Index::from(at).into(), syn::Member::Named);
            bound.push(quote!(#member: #name));
        }
        Ok(Weights {
            pattern: quote!(#path { #(#bound,)* .. }),
            sum,
            holds_nothing,
        })
    }
}

fn expand(input: DeriveInput) -> Result<TokenStream> {
    let DeriveInput {
        ident: name,
        mut generics,
        data,
        ..
    } = input;
    let weights = match &data {
        Data::Struct(data) => vec![Weights::of(&quote!(Self), &data.fields)?],
        Data::Enum(data) => {
            let of = |variant: &Ident, fields| Weights::of(&quote!(Self::#variant), fields);
            data.variants
                .iter()
                .map(|variant| of(&variant.ident, &variant.fields))
                .collect::<Result<_>>()?
        }
        Data::Union(_) => {
            return Err(Error::new(
                Span::call_site(),
                "a union does not say which of its fields it has",
            ));
        }
    };
    let parameters: Vec<Ident> = generics
        .type_params()
        .map(|parameter| parameter.ident.clone())
        .collect();
    for parameter in parameters {
        generics
            .make_where_clause()
            .predicates
            .push(parse_quote!(#parameter: ::memcg::Weigh));
    }
    let (impls, types, bounds) = generics.split_for_impl();
    let holds_nothing = weights.iter().flat_map(|weights| &weights.holds_nothing);
    let arms = weights
        .iter()
        .map(|Weights { pattern, sum, .. }| quote!(#pattern => #sum));
    let of = if weights.is_empty() {
        quote!(*self)
    } else {
        quote!(self)
    };
    Ok(quote! {
        #[automatically_derived]
        impl #impls ::memcg::Weigh for #name #types #bounds {
            const HOLDS_NOTHING: bool = true #(&& #holds_nothing)*;

            fn weigh(&self) -> usize {
                match #of { #(#arms,)* }
            }
        }
    })
}
