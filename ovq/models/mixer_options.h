// Options of any mixer: conversion from and to JSON, and construction of the mixer.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "ovq/nn/attention.h"
#include "ovq/nn/gated_delta_net.h"
#include "ovq/nn/linear_attention_mixer.h"
#include "ovq/nn/mamba2.h"
#include "ovq/nn/mesa_net.h"
#include "ovq/nn/ovq_attention.h"
#include "ovq/nn/vq_attention.h"

namespace ovq::models {

using MixerOptions =
    std::variant<nn::AttentionOptions, nn::OvqAttentionOptions, nn::VqAttentionOptions, nn::GatedDeltaNetOptions,
                 nn::Mamba2Options, nn::MesaNetOptions, nn::LinearAttentionMixerOptions>;

// "attention", "ovq", "vq", "gdn", "mamba2", "mesa", "linear"
std::vector<std::string> mixer_types();
std::string type_of(const MixerOptions& options);

// Default options of a type; the width is the model's.
MixerOptions default_options(const std::string& type, int64_t width);

// {"type": ..., options}; `path` names the object in errors.
MixerOptions mixer_from_json(const nlohmann::json& object, int64_t width, const std::string& path);
nlohmann::json to_json(const MixerOptions& options);
// Fields of a mixer of that type that earlier versions had; see update_retired_fields and add_retired_fields.
void update_retired_mixer_fields(nlohmann::json& object, const std::string& type);
void add_retired_mixer_fields(nlohmann::json& object, const std::string& type);

// The fields of that type's options, as FieldDescriber has them.
nlohmann::json describe_mixer(const std::string& type);

std::shared_ptr<nn::Mixer> make_mixer(const MixerOptions& options);
// The options of a mixer, with defaults that depend on other options filled in.
MixerOptions options_of(const nn::Mixer& mixer);

}  // namespace ovq::models
