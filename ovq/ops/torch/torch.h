// The parts of torch that this project builds on. All of <torch/torch.h> takes nearly twice as long to parse, and
// leaves every file that includes it more templates to instantiate.
#pragma once

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
